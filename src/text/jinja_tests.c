/* Tests: x is defined, x is divisibleby 3. Each returns a bool. */
#include <string.h>
#include <utf8proc.h>

#include "text/jinja_internal.h"

#define TEST(name, condition)                                                                                \
    static jv name(jx *x, jv v, const jv *a, const jcall *c)                                                 \
    {                                                                                                        \
        return nb_j_bool(condition);                                                                         \
    }

static bool has_case(jx *x, jv v, const char *method)
{
    bool unsafe;
    jv s = nb_j_text(x, v);
    return nb_j_truth(x, nb_j_method(s, method, strlen(method), &unsafe)->fn(x, s, NULL, NULL));
}

static bool has_filter(jv name)
{
    const jbuiltin *f = name.type == J_STR ? nb_j_filter(name.u.s, name.n) : NULL;
    return f && f->fn;
}

static bool divisible(jx *x, jv v, jv by)
{
    return nb_j_equal(x, nb_j_binary(x, J_MOD, v, by), nb_j_int(0));
}

static bool same(jv v, jv other)
{
    if (v.type != other.type) return false;
    return v.type == J_FLOAT  ? v.u.f == other.u.f
           : v.type == J_BOOL ? v.u.b == other.u.b
                              : v.type <= J_NONE || (v.u.i == other.u.i && v.n == other.n);
}

static bool is_iterable(jv v)
{
    return v.type == J_UNDEFINED || v.type == J_STR || (v.type >= J_LIST && v.type <= J_DICT) ||
           v.type == J_LOOP;
}

TEST(is_defined, v.type != J_UNDEFINED)
TEST(is_undefined, v.type == J_UNDEFINED)
TEST(is_none, v.type == J_NONE)
TEST(is_boolean, v.type == J_BOOL)
TEST(is_true, v.type == J_BOOL && v.u.b)
TEST(is_false, v.type == J_BOOL && !v.u.b)
TEST(is_integer, v.type == J_INT)
TEST(is_float, v.type == J_FLOAT)
TEST(is_number, v.type == J_INT || v.type == J_FLOAT || v.type == J_BOOL)
TEST(is_string, v.type == J_STR)
TEST(is_mapping, v.type == J_DICT)
TEST(is_iterable_test, is_iterable(v))
TEST(is_sequence,
     v.type == J_UNDEFINED || v.type == J_STR || (v.type >= J_LIST && v.type <= J_RANGE) || v.type == J_DICT)
TEST(is_callable, v.type == J_UNDEFINED || v.type >= J_LOOP)
TEST(is_escaped, false)
TEST(is_odd, nb_j_equal(x, nb_j_binary(x, J_MOD, v, nb_j_int(2)), nb_j_int(1)))
TEST(is_even, divisible(x, v, nb_j_int(2)))
TEST(is_divisibleby, divisible(x, v, a[0]))
TEST(is_in, nb_j_contains(x, a[0], v))
TEST(is_sameas, same(v, a[0]))
TEST(is_lower, has_case(x, v, "islower"))
TEST(is_upper, has_case(x, v, "isupper"))
TEST(is_filter, has_filter(v))
TEST(is_test, v.type == J_STR && nb_j_test(v.u.s, v.n))
TEST(is_eq, nb_j_truth(x, nb_j_compare(x, J_EQ, v, a[0])))
TEST(is_ne, nb_j_truth(x, nb_j_compare(x, J_NE, v, a[0])))
TEST(is_lt, nb_j_truth(x, nb_j_compare(x, J_LT, v, a[0])))
TEST(is_le, nb_j_truth(x, nb_j_compare(x, J_LE, v, a[0])))
TEST(is_gt, nb_j_truth(x, nb_j_compare(x, J_GT, v, a[0])))
TEST(is_ge, nb_j_truth(x, nb_j_compare(x, J_GE, v, a[0])))

static const jbuiltin tests[] = {
    {"defined", "", is_defined},
    {"undefined", "", is_undefined},
    {"none", "", is_none},
    {"boolean", "", is_boolean},
    {"true", "", is_true},
    {"false", "", is_false},
    {"integer", "", is_integer},
    {"float", "", is_float},
    {"number", "", is_number},
    {"string", "", is_string},
    {"mapping", "", is_mapping},
    {"iterable", "", is_iterable_test},
    {"sequence", "", is_sequence},
    {"callable", "", is_callable},
    {"escaped", "", is_escaped},
    {"odd", "", is_odd},
    {"even", "", is_even},
    {"divisibleby", "num", is_divisibleby},
    {"in", "seq", is_in},
    {"sameas", "other", is_sameas},
    {"lower", "", is_lower},
    {"upper", "", is_upper},
    {"filter", "", is_filter},
    {"test", "", is_test},
    {"==", "b", is_eq},
    {"!=", "b", is_ne},
    {"<", "b", is_lt},
    {"<=", "b", is_le},
    {">", "b", is_gt},
    {">=", "b", is_ge},
    {"eq", "b", is_eq},
    {"equalto", "b", is_eq},
    {"ne", "b", is_ne},
    {"lt", "b", is_lt},
    {"lessthan", "b", is_lt},
    {"le", "b", is_le},
    {"gt", "b", is_gt},
    {"greaterthan", "b", is_gt},
    {"ge", "b", is_ge},
    {0},
};

const jbuiltin *nb_j_test(const char *name, size_t n)
{
    return nb_j_find(tests, name, n);
}
