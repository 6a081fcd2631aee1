/* The frame of the HTML reports. */
#include "doctor/html.h"

void nb_html_escape(const char *s, nb_buf *out)
{
    for (; *s; s++) {
        switch (*s) {
        case '<': nb_buf_adds(out, "&lt;"); break;
        case '>': nb_buf_adds(out, "&gt;"); break;
        case '&': nb_buf_adds(out, "&amp;"); break;
        case '"': nb_buf_adds(out, "&quot;"); break;
        default: nb_buf_addc(out, *s);
        }
    }
}

static const char common[] =
    ":root{--bg:#fff;--fg:#1b1f24;--dim:#5b6570;--line:#d8dee4;--card:#f6f8fa;--bad:#b3261e;--warn:#8a5a00;--"
    "ok:#1a7f37}"
    "@media(prefers-color-scheme:dark){:root{--bg:#12161b;--fg:#e4e9ee;--dim:#9aa6b2;--line:#2d353e;"
    "--card:#1a2027;--bad:#ff8a80;--warn:#f0b860;--ok:#7ee08f}}"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,"
    "sans-serif}main{max-width:1180px;margin:0 auto;padding:20px 16px 48px}h1{font-size:20px;margin:0 0 "
    "4px;overflow-wrap:anywhere}h2{font-size:16px;margin:32px 0 8px}.sub{color:var(--dim);margin:0 0 16px}"
    ".verdict{background:var(--card);border:1px solid var(--line);border-left:5px solid var(--ok);border-"
    "radius:6px;padding:12px 16px;margin:0;overflow-wrap:anywhere}.verdict.bad{border-left-color:var(--bad)}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:12px 0 0}dt{color:var(--dim)}"
    "dd{margin:0;overflow-wrap:anywhere;font-family:ui-monospace,monospace;font-size:13px}";

void nb_html_begin(const char *verb, const char *heading, const char *title, const char *style, nb_buf *out)
{
    nb_buf_addf(out,
                "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport "
                "content=\"width=device-width,initial-scale=1\"><title>nibble %s: ",
                verb);
    nb_html_escape(title, out);
    nb_buf_addf(out, "</title><style>%s%s</style></head>\n<body><main><h1>%s ", common, style, heading);
    nb_html_escape(title, out);
    nb_buf_adds(out, "</h1>");
}

void nb_html_end(nb_buf *out)
{
    nb_buf_adds(out, "</main></body></html>\n");
}
