/* The page of GET /, one file without a reference to anything outside of it (look.html), and the policy under which a
 * browser runs it: by digests of its one script and its one style. tools/embed_page.py makes both at build time. */
#ifndef GR_ORCHESTRATOR_HTTP_LOOK_H
#define GR_ORCHESTRATOR_HTTP_LOOK_H

extern const char gr_look_html[];   /* with a NUL at its end */
extern const char gr_look_policy[]; /* of the header Content-Security-Policy */

#endif
