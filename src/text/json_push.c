/* A JSON object byte by byte: a state for each place of RFC 8259's grammar, a stack for what is open. */
#include "text/json_push.h"

#include <string.h>

enum {        /* what may come next */
       START, /* the outermost { */
       VALUE,
       VALUE_OR_END, /* after [ */
       KEY,
       KEY_OR_END, /* after { */
       COLON,
       NEXT, /* a comma, or the end of what is open */
       STRING,
       ESCAPE,
       HEX,
       LITERAL,
       MINUS, /* a number, by what was last of it */
       ZERO,
       INTEGER,
       POINT,
       FRACTION,
       E,
       E_SIGN,
       EXPONENT,
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int open_one(nb_json_push *p, char c)
{
    if (p->depth == NB_JSON_PUSH_DEPTH) return -1;
    p->stack[p->depth++] = c;
    p->state = c == '{' ? KEY_OR_END : VALUE_OR_END;
    return 0;
}

static int close_one(nb_json_push *p)
{
    p->state = NEXT;
    if (--p->depth == 0) return NB_PUSH_OBJECT_END;
    return p->depth == 1 ? NB_PUSH_VALUE_END : 0;
}

static int begin_string(nb_json_push *p, bool key)
{
    p->state = STRING;
    p->key = key;
    return key && p->depth == 1 ? NB_PUSH_KEY_BEGIN : 0;
}

static int begin_value(nb_json_push *p, char c)
{
    int begun = p->depth == 1 ? NB_PUSH_VALUE_BEGIN : 0;
    switch (c) {
    case '"': return begun | begin_string(p, false);
    case '{':
    case '[': return open_one(p, c) ? -1 : begun;
    case 't': p->literal = "rue"; break;
    case 'f': p->literal = "alse"; break;
    case 'n': p->literal = "ull"; break;
    case '-': p->state = MINUS; return begun;
    case '0': p->state = ZERO; return begun;
    default:
        if (!is_digit(c)) return -1;
        p->state = INTEGER;
        return begun;
    }
    p->state = LITERAL;
    return begun;
}

static int in_string(nb_json_push *p, char c)
{
    if (c == '\\') {
        p->state = ESCAPE;
        return 0;
    }
    if (c != '"') return (unsigned char)c < 0x20 ? -1 : 0;
    p->state = p->key ? COLON : NEXT;
    return p->depth > 1 ? 0 : p->key ? NB_PUSH_KEY_END : NB_PUSH_VALUE_END;
}

/* The state after one more character of a number, or -1. */
static int number_state(int state, char c)
{
    bool digit = is_digit(c), e = c == 'e' || c == 'E';
    switch (state) {
    case MINUS: return c == '0' ? ZERO : digit ? INTEGER : -1;
    case ZERO: return c == '.' ? POINT : e ? E : -1;
    case INTEGER: return digit ? INTEGER : c == '.' ? POINT : e ? E : -1;
    case POINT: return digit ? FRACTION : -1;
    case FRACTION: return digit ? FRACTION : e ? E : -1;
    case E: return c == '+' || c == '-' ? E_SIGN : digit ? EXPONENT : -1;
    default: return digit ? EXPONENT : -1; /* E_SIGN, EXPONENT */
    }
}

static int next(nb_json_push *p, char c)
{
    char in = p->stack[p->depth - 1];
    if (is_blank(c)) return 0;
    if (c == ',') {
        p->state = in == '{' ? KEY : VALUE;
        return 0;
    }
    return c == (in == '{' ? '}' : ']') ? close_one(p) : -1;
}

int nb_json_push_byte(nb_json_push *p, char c)
{
    int over = 0;
    if (p->state >= MINUS) {
        int state = number_state(p->state, c);
        bool whole = p->state == ZERO || p->state == INTEGER || p->state == FRACTION || p->state == EXPONENT;
        if (state < 0 && !whole) return -1;
        p->state = state < 0 ? NEXT : state;
        if (state >= 0) return 0;
        over = p->depth == 1 ? NB_PUSH_VALUE_OVER : 0;
    }
    switch (p->state) {
    case START: return c == '{' ? open_one(p, c) : -1;
    case STRING: return in_string(p, c);
    case ESCAPE:
        if (!c || !strchr("\"\\/bfnrtu", c)) return -1;
        p->state = c == 'u' ? HEX : STRING;
        p->hex = 4;
        return 0;
    case HEX:
        if (!is_digit(c) && !(c >= 'a' && c <= 'f') && !(c >= 'A' && c <= 'F')) return -1;
        if (--p->hex == 0) p->state = STRING;
        return 0;
    case LITERAL:
        if (c != *p->literal++) return -1;
        if (*p->literal) return 0;
        p->state = NEXT;
        return p->depth == 1 ? NB_PUSH_VALUE_END : 0;
    case NEXT: {
        int event = next(p, c);
        return event < 0 ? -1 : event | over;
    }
    default: break;
    }
    if (is_blank(c)) return 0;
    switch (p->state) {
    case VALUE: return begin_value(p, c);
    case VALUE_OR_END: return c == ']' ? close_one(p) : begin_value(p, c);
    case KEY: return c == '"' ? begin_string(p, true) : -1;
    case KEY_OR_END: return c == '"' ? begin_string(p, true) : c == '}' ? close_one(p) : -1;
    default: /* COLON */
        if (c != ':') return -1;
        p->state = VALUE;
        return 0;
    }
}
