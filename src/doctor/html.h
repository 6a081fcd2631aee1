/* What the pages of trace and check have in common: escaping, the frame, and the colours of light and dark. */
#ifndef NB_DOCTOR_HTML_H
#define NB_DOCTOR_HTML_H

#include "base/buf.h"

/* Text for an element or a quoted attribute. */
void nb_html_escape(const char *s, nb_buf *out);
/* The page up to and with its heading; `style` follows the common rules. nb_html_end closes it. */
void nb_html_begin(const char *verb, const char *heading, const char *title, const char *style, nb_buf *out);
void nb_html_end(nb_buf *out);

#endif
