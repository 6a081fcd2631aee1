/* How fast the tokenizer is: bench_tokenizer FILE DIR... encodes FILE as one text with each folder's tokenizer, on one thread,
 * and prints MB/s of the best of some passes. Each pass starts with an empty cache of pieces, so that only the repetition
 * within the text counts. Long runs of one letter are timed too: they must not be slower by more than a small factor. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "text/tokenizer.h"

#define PASSES 5
#define RUN ((size_t)1 << 20)

/* MB/s of encoding, the best pass; 0 when it fails. *ids: the number of tokens. */
static double encode_rate(const nb_tokenizer *t, const char *text, size_t n, size_t *ids)
{
    double best = 0;
    for (int i = 0; i < PASSES; i++) {
        nb_ids out = {0};
        nb_tok_scratch *s = nb_tok_scratch_new(t);
        double start = nb_now();
        nb_status status = s ? nb_tokenizer_encode(t, s, text, n, false, &out, NULL) : NB_ERR_NOMEM;
        double rate = (double)n / 1e6 / (nb_now() - start);
        *ids = out.len;
        free(out.data);
        nb_tok_scratch_free(s);
        if (status) return 0;
        if (rate > best) best = rate;
    }
    return best;
}

static double decode_rate(const nb_tokenizer *t, const char *text, size_t n)
{
    nb_ids ids = {0};
    nb_buf out = {0};
    double rate = 0;
    nb_tok_scratch *s = nb_tok_scratch_new(t);
    if (s && nb_tokenizer_encode(t, s, text, n, false, &ids, NULL) == NB_OK) {
        double start = nb_now();
        if (nb_tokenizer_decode(t, ids.data, ids.len, false, &out, NULL) == NB_OK)
            rate = (double)out.len / 1e6 / (nb_now() - start);
    }
    free(ids.data);
    nb_buf_free(&out);
    nb_tok_scratch_free(s);
    return rate;
}

int main(int argc, char **argv)
{
    nb_buf text = {0};
    nb_error err = {.offset = -1};
    char *run = malloc(RUN);
    if (argc < 3 || !run) {
        fprintf(stderr, "usage: bench_tokenizer FILE DIR...\n");
        free(run);
        return 64;
    }
    memset(run, 'a', RUN);
    int failed = nb_file_slurp(argv[1], (size_t)1 << 30, &text, &err) != NB_OK;
    if (!failed)
        printf("%-32s %8s %10s %10s %10s %14s\n", "tokenizer", "load ms", "MB/s", "B/token", "decode",
               "1 MB of 'a'");
    for (int i = 2; i < argc && !failed; i++) {
        nb_tokenizer *t = NULL;
        size_t ids = 0, run_ids;
        double start = nb_now();
        failed = nb_tokenizer_open(argv[i], &t, &err) != NB_OK;
        if (failed) break;
        double load = nb_now() - start, rate = encode_rate(t, text.data, text.len, &ids);
        printf("%-32s %8.0f %10.1f %10.2f %10.0f %9.1f MB/s\n", argv[i], load * 1e3, rate,
               ids ? (double)text.len / (double)ids : 0, decode_rate(t, text.data, text.len),
               encode_rate(t, run, RUN, &run_ids));
        nb_tokenizer_free(t);
    }
    if (failed) fprintf(stderr, "bench_tokenizer: %s: %s\n", err.file, err.cause);
    nb_buf_free(&text);
    free(run);
    return failed;
}
