#include "doctor/trace.h"
void nb_trace_html(const nb_trace *t, const char *title, nb_buf *out)
{
    nb_trace_text(t, out);
}
