/*
 * What stored input scales do to real activations: texts run through the exact model, and beside each NVFP4 linear its product with
 * the input quantised by the stored scale, and by each row's own. For the rule that the file alone cannot decide (NB111).
 */
#ifndef NB_DOCTOR_ACTIVATIONS_H
#define NB_DOCTOR_ACTIVATIONS_H

#include "base/error.h"
#include "base/log.h"

/* One linear with a usable input scale that some text reached. */
typedef struct nb_activation {
    char *module;  /* stored name, owned */
    uint64_t rows; /* rows of k values that its quantiser saw, not 0 */
    double amax;
    double multiplier;                  /* the stored scale */
    double clipped, flushed, saturated; /* shares of elements, elements, blocks */
    double cos;                         /* of the output, mean over rows */
    double snr_db, best_db;             /* of the output; best: with each row's own scale */
    bool bad;                           /* the stored scale costs more than W4A4 must: as trace judges */
} nb_activation;

typedef struct nb_activations {
    nb_activation *items; /* [n], in the order of layers */
    size_t n, texts, tokens;
    bool asked;
    nb_error why; /* status not NB_OK: the model could not be run, so nothing was measured */
} nb_activations; /* zero-initialise; nb_activations_free */

/* Measures the folder over the texts of data (JSON lines as calibrate reads them; NULL: the built-in prompts), layer by layer.
 * Fails only for what is not the folder's fault: a data file that cannot be read, no memory. What is, is in out->why. */
nb_status nb_activations_measure(const char *dir, const char *data, size_t threads, const nb_sink *sink,
                                 nb_activations *out, nb_error *err);
void nb_activations_free(nb_activations *a);

#endif
