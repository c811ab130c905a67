/* The nodes of each list on standard input, a line a list, as `scontrol show hostnames' prints them. */
#include "orchestrator/launch/node_list.h"

#include <stdio.h>
#include <string.h>

int main(void)
{
    char list[4096], name[256];
    while (fgets(list, sizeof(list), stdin) != NULL) {
        list[strcspn(list, "\n")] = '\0';
        for (int i = 0; gr_node_list_at(list, i, name, sizeof(name)) == GR_OK; i++) {
            printf("%s%s", i > 0 ? " " : "", name);
        }
        putchar('\n');
    }
    return 0;
}
