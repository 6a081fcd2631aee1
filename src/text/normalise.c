/* Unicode normalisation before anything is cut. Of the supported families only Qwen's asks for one, NFC. Nearly all
 * text is in NFC already, so a scan decides first whether utf8proc need look at it. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/internal.h"

nb_status nb_normaliser_load(const json_t *spec, bool *nfc, nb_error *err)
{
    const char *type;
    if (!spec || json_is_null(spec)) return NB_OK;
    nb_status s = nb_component_type(spec, "normalizer", &type, err);
    if (s) return s;
    if (strcmp(type, "NFC") == 0) {
        *nfc = true;
        return NB_OK;
    }
    if (strcmp(type, "Sequence") != 0) return nb_tok_unsupported(err, "normalizer", type);
    const json_t *list = json_object_get(spec, "normalizers"), *each;
    if (!json_is_array(list))
        return nb_fail(err, NB_ERR_FORMAT, "normalizer Sequence: 'normalizers' is not an array");
    size_t i;
    json_array_foreach(list, i, each) if ((s = nb_normaliser_load(each, nfc, err))) return s;
    return NB_OK;
}

/* True when no character of s can change or combine, so that s is in NFC. May be false for text that is. Below U+0300
 * every character is its own NFC and none combines with the one before it. */
static bool plainly_nfc(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        if ((unsigned char)s[i] < 0xCC) { /* below U+0300, or a byte within such a character */
            i++;
            continue;
        }
        uint32_t c;
        size_t w = nb_utf8_decode(s + i, n - i, &c);
        if (!w) return false;
        const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)c);
        bool decomposes = p->decomp_type == 0 && p->decomp_seqindex != UINT16_MAX;
        bool joins =
            p->comb_index != UINT16_MAX && p->comb_index >= 0x8000; /* second half of a composition */
        bool jamo = (c >= 0x1161 && c <= 0x1175) || (c >= 0x11A8 && c <= 0x11C2);
        if (p->combining_class || decomposes || joins || jamo) return false;
        i += w;
    }
    return true;
}

nb_status nb_nfc(const char *s, size_t n, const char **out, size_t *out_n, char **owned, nb_error *err)
{
    *out = s;
    *out_n = n;
    *owned = NULL;
    if (plainly_nfc(s, n)) return NB_OK;
    utf8proc_uint8_t *text = NULL;
    utf8proc_ssize_t m = n > PTRDIFF_MAX / 8 ? UTF8PROC_ERROR_OVERFLOW
                                             : utf8proc_map((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n,
                                                            &text, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (m == UTF8PROC_ERROR_NOMEM || m == UTF8PROC_ERROR_OVERFLOW)
        return nb_fail_nomem(err, "NFC of a text", n);
    if (m < 0) return nb_fail(err, NB_ERR_ARGUMENT, "NFC: %s", utf8proc_errmsg(m));
    *out = *owned = (char *)text;
    *out_n = (size_t)m;
    return NB_OK;
}
