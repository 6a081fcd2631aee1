#include "cli/cli.h"
#include "kernels/cpu/kernels.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int nb_cli_usage(const char *verb, const char *fmt, ...)
{
    const char *space = verb ? " " : "";
    verb = verb ? verb : "";
    fprintf(stderr, "nibble%s%s: ", space, verb);
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, " (see nibble%s%s --help)\n", space, verb);
    return NB_EXIT_USAGE;
}

int nb_cli_bad_option(const char *verb, int code, char **argv)
{
    const char *word = argv[optind - 1];
    char letter[3] = {'-', (char)optopt, '\0'};
    const bool is_long = strncmp(word, "--", 2) == 0 && (optopt == 0 || optopt > 255 || optopt < ' ');
    if (!is_long && optopt > ' ' && optopt < 127) word = letter; /* one of a cluster, perhaps */
    if (code == ':') return nb_cli_usage(verb, "%s needs a value", word);
    if (is_long && optopt) return nb_cli_usage(verb, "%s takes no value", word);
    return nb_cli_usage(verb, "there is no option '%s' here", word);
}

int nb_cli_bad_value(const char *verb, const struct option *options, int code, const char *takes)
{
    while (options->name && options->val != code) options++;
    return nb_cli_usage(verb, "--%s takes %s, not '%s'", options->name ? options->name : "?", takes, optarg);
}

int nb_cli_fail(const nb_error *err)
{
    char line[2048];
    nb_error_format(err, line, sizeof line);
    fprintf(stderr, "nibble: %s\n", line);
    return NB_EXIT_FAILED;
}

int nb_cli_print(nb_buf *report, int code, int failed)
{
    if (!nb_buf_ok(report)) {
        fputs("nibble: no memory for the report\n", stderr);
        code = failed;
    } else if (fwrite(nb_buf_str(report), 1, report->len, stdout) != report->len || fflush(stdout) != 0) {
        fputs("nibble: cannot write to stdout\n", stderr);
        code = failed;
    }
    nb_buf_free(report);
    return code;
}

bool nb_cli_number(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    char *end;
    if (text[0] < '0' || text[0] > '9') return false;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno || *end || v < min || v > max) return false;
    *out = v;
    return true;
}

bool nb_cli_real(const char *text, double *out)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v)) return false;
    *out = v;
    return true;
}

const char nb_cli_model_help[] =
    "  --arith A           exact, bf16, int8, w4a4, w4a4-dynamic or auto (bf16): how inputs of quantised "
    "linears "
    "are treated\n"
    "  --act-dtype D       f32 (default) or bf16: what passes between operators\n"
    "  --quant-input D     f32 (default) or bf16: what w4a4's quantiser receives; GPU kernels receive bf16\n"
    "  --scales S          where w4a4 takes input scales from: checkpoint (default), warmup (measured on "
    "built-in\n"
    "                      prompts while loading), dynamic (each live row), or a file from nibble calibrate\n"
    "  --dequant PATTERN   load the linears whose names match as BF16: '*attn*' (repeatable)\n"
    "  --kernels K         auto (default: the best this machine has, or what NB_CPU names), generic (the\n"
    "                      plain references), " NB_CLI_KERNELS "\n"
    "  --threads N         threads (default: one a core that affinity and cgroup allow)\n"
    "  --format F          text (default) or json: JSON alone on stdout; on an error nothing there, the "
    "reason on "
    "stderr\n"
    "  -q, --quiet         no progress and notes\n";

const char nb_cli_context_help[] =
    "  --max-model-len N   tokens of context (default: the model's, at most 8192)\n";

const char nb_cli_cache_help[] =
    "  --packed-cache F    keep packed weights in file F, or auto: nibble-packed.cache in DIR; the next "
    "start reads\n"
    "                      them there. Worth it where packing is slow: --dequant, MLA, transposed experts\n";

int nb_cli_model_option(const char *verb, int code, char **argv, nb_cli_model *m)
{
    static const struct option options[] = {NB_CLI_MODEL_OPTIONS, {0}};
    uint64_t v;
    switch (code) {
    case NB_OPT_ARITH: m->arith = optarg; return NB_EXIT_OK;
    case NB_OPT_KERNELS: m->kernels = optarg; return NB_EXIT_OK;
    case NB_OPT_ACT_DTYPE: m->act_dtype = optarg; return NB_EXIT_OK;
    case NB_OPT_QUANT_INPUT: m->quant_input = optarg; return NB_EXIT_OK;
    case NB_OPT_THREADS:
        if (!nb_cli_number(optarg, 1, 1024, &v))
            return nb_cli_bad_value(verb, options, code, "a number from 1 to 1024");
        m->threads = v;
        return NB_EXIT_OK;
    case NB_OPT_MAX_MODEL_LEN:
        if (!nb_cli_number(optarg, 1, INT32_MAX, &v))
            return nb_cli_bad_value(verb, options, code, "a number of tokens");
        m->max_context = v;
        return NB_EXIT_OK;
    case NB_OPT_FORMAT:
        if (strcmp(optarg, "text") != 0 && strcmp(optarg, "json") != 0)
            return nb_cli_bad_value(verb, options, code, "text or json");
        m->format = optarg;
        return NB_EXIT_OK;
    case NB_OPT_SCALES: m->scales = optarg; return NB_EXIT_OK;
    case NB_OPT_DEQUANT:
        if (m->n_dequant == NB_MAX_DEQUANT)
            return nb_cli_usage(verb, "--dequant is given more than %d times; use wider patterns",
                                NB_MAX_DEQUANT);
        m->dequant[m->n_dequant++] = optarg;
        return NB_EXIT_OK;
    case NB_OPT_PACKED_CACHE: m->packed_cache = optarg; return NB_EXIT_OK;
    case 'q': m->quiet = true; return NB_EXIT_OK;
    case 'h': m->help = true; return NB_EXIT_OK;
    default: return nb_cli_bad_option(verb, code, argv);
    }
}

static bool arith_of(const char *name, nb_arith *out)
{
    for (int a = 0; a < NB_ARITH_COUNT; a++) {
        if (strcmp(name, nb_arith_name((nb_arith)a)) != 0) continue;
        *out = (nb_arith)a;
        return true;
    }
    *out = NB_ARITH_BF16; /* auto: the fastest there is within 0.1 % of bf16 is bf16 itself */
    return strcmp(name, "auto") == 0;
}

/* "bf16", or "f32" (the default, NULL). */
static bool dtype_of(const char *name, bool *bf16)
{
    *bf16 = name && strcmp(name, "bf16") == 0;
    return !name || *bf16 || strcmp(name, "f32") == 0;
}

/* Kernels that this machine has not: lists those that it has. */
static int bad_kernels(const char *verb, const nb_cpu *cpu, const char *whose, const char *name)
{
    const nb_kernels *list[8];
    const size_t n = nb_kernels_list(cpu, list, sizeof list / sizeof *list);
    char names[128] = "auto";
    for (size_t i = 0; i < n; i++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i + 1 < n ? ", " : " or ", list[i]->name);
    }
    return nb_cli_usage(verb, "%s takes %s on this machine, not '%s'", whose, names, name);
}

int nb_cli_model_finish(const char *verb, int argc, char **argv, const char *default_arith, nb_cli_model *m,
                        nb_llm_options *out)
{
    const char *arith = m->arith ? m->arith : default_arith;
    if (!m->format) m->format = "text";
    *out = (nb_llm_options){.threads = m->threads,
                            .kernels = m->kernels,
                            .max_context = m->max_context,
                            .scales = m->scales,
                            .dequant = m->dequant,
                            .n_dequant = m->n_dequant,
                            .packed_cache = m->packed_cache};
    if (optind >= argc) return nb_cli_usage(verb, "which model? Give its folder");
    if (optind + 1 < argc) return nb_cli_usage(verb, "one folder at a time; what is '%s'?", argv[optind + 1]);
    m->dir = argv[optind];
    if (!arith_of(arith, &out->arith))
        return nb_cli_usage(verb, "--arith takes exact, bf16, int8, w4a4, w4a4-dynamic or auto, not '%s'",
                            arith);
    if (m->scales && strcmp(m->scales, "dynamic") == 0 && out->arith == NB_ARITH_W4A4)
        out->arith = NB_ARITH_W4A4_DYNAMIC;             /* its name, wherever the arithmetic is printed */
    if (!out->kernels) out->kernels = getenv("NB_CPU"); /* reaches programs that other programs start, too */
    if (out->kernels && !*out->kernels) out->kernels = NULL;
    nb_cpu cpu;
    nb_cpu_detect(&cpu);
    if (out->kernels && strcmp(out->kernels, "auto") != 0 && !nb_kernels_pick(&cpu, out->kernels))
        return bad_kernels(verb, &cpu, m->kernels ? "--kernels" : "NB_CPU", out->kernels);
    if (m->packed_cache && !*m->packed_cache)
        return nb_cli_usage(verb, "--packed-cache takes a file or auto, not nothing");
    if (!dtype_of(m->act_dtype, &out->act_bf16))
        return nb_cli_usage(verb, "--act-dtype takes f32 or bf16, not '%s'", m->act_dtype);
    if (!dtype_of(m->quant_input, &out->quant_bf16))
        return nb_cli_usage(verb, "--quant-input takes f32 or bf16, not '%s'", m->quant_input);
    nb_cli_sink(&out->sink, m->quiet);
    return NB_EXIT_OK;
}
