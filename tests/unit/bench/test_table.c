/* Cells of tables that have no number: empty in every format, and null in JSON. */
#include "bench/table.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void test_ratio(void **state)
{
    (void)state;
    assert_true(gr_ratio(3.0, 2.0) == 1.5);
    assert_true(gr_ratio(0.0, 2.0) == 0.0);
    assert_true(isnan(gr_ratio(3.0, 0.0)) && isnan(gr_ratio(0.0, 0.0)) && isnan(gr_ratio(1.0, -1.0)));
    assert_true(isnan(gr_ratio(1.0, (double)NAN)));
}

/* A row without numbers; owned by the caller. */
static char *empty_row(enum gr_table_format format)
{
    static const char *const columns[] = {"number", "mean", "list"};
    const double none[] = {(double)NAN, (double)NAN}, list[] = {1.5, (double)NAN};
    struct gr_table t;
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    assert_non_null(f);
    gr_table_quiet(true);
    gr_table_begin(&t, format, f, "test", NULL, columns, 3);
    gr_table_number(&t, gr_ratio(1.0, 0.0), 2);
    gr_table_mean(&t, none, 2, 1);
    gr_table_numbers(&t, list, 2, 1);
    gr_table_end(&t);
    assert_int_equal(fclose(f), 0);
    return text;
}

static void test_empty_cells(void **state)
{
    (void)state;
    char *text = empty_row(GR_TABLE_JSON);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    const json_t *row = json_array_get(json_object_get(root, "rows"), 0);
    assert_true(json_is_null(json_object_get(row, "number")) && json_is_null(json_object_get(row, "mean")));
    assert_true(json_is_null(json_array_get(json_object_get(row, "list"), 1)));
    json_decref(root);
    free(text);
    text = empty_row(GR_TABLE_CSV);
    assert_string_equal(text, "number,mean,list\r\n,,1.5 -\r\n");
    free(text);
    text = empty_row(GR_TABLE_MD);
    assert_non_null(strstr(text, "| -              |        - |    1.5 - |\n"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ratio),
        cmocka_unit_test(test_empty_cells),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
