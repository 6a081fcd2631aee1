/* nibble calibrate: which range each linear's input has on real text, and whether the checkpoint's input scales fit it. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "doctor/calibrate.h"

static const char usage[] =
    "usage: nibble calibrate DIR [--data F] -o FILE [options]\n\n"
    "Runs texts through the model and notes, for each linear and expert, the largest input, its 99.99th "
    "percentile and the\n"
    "rows seen; compares them with the input scales that the checkpoint stores. FILE serves `--scales FILE` "
    "and repair.\n"
    "The weights are read layer by layer: a model larger than memory works.\n\n"
    "  -o, --output FILE   safetensors file to write: MODULE.input_amax, MODULE.input_p9999, MODULE.tokens\n"
    "  --data F            JSON lines {\"text\": …} (special tokens spelled out) or {\"messages\": […]}; "
    "without it,\n"
    "                      built-in prompts\n"
    "  --rows N            tokens computed in one pass over the weights (default 512): more rows are fewer "
    "passes\n"
    "                      and more memory\n"
    "  --arith A           exact (default) or bf16\n"
    "  --act-dtype D       f32 (default) or bf16: what passes between operators\n"
    "  --kernels K         auto (default), generic, " NB_CLI_KERNELS "\n"
    "  --threads N         threads (default: one a core that affinity and cgroup allow)\n"
    "  --format F          text (default) or json: JSON alone on stdout\n"
    "  -q, --quiet         no progress and notes\n\n"
    "Exit status: 0 measured, 1 failed, 64 usage.\n\n"
    "examples:\n"
    "  nibble calibrate models/demo -o ranges.safetensors\n"
    "  nibble run models/demo --arith w4a4 --scales ranges.safetensors -p 'What is 12 + 30?'\n";

enum { OPT_DATA = 1, OPT_ROWS };

static const struct option options[] = {{"data", required_argument, NULL, OPT_DATA},
                                        {"output", required_argument, NULL, 'o'},
                                        {"rows", required_argument, NULL, OPT_ROWS},
                                        NB_CLI_MODEL_OPTIONS,
                                        {0}};

int nb_cmd_calibrate(int argc, char **argv)
{
    nb_calibrate_options o = {0};
    nb_cli_model model = {0};
    nb_llm_options lo;
    nb_calibration c = {0};
    nb_buf report = {0};
    nb_error err = {.offset = -1};
    uint64_t v;
    int code, rc;
    optind = 1;
    opterr = 0;
    while ((code = getopt_long(argc, argv, ":o:qh", options, NULL)) != -1) {
        switch (code) {
        case 'o': o.out = optarg; break;
        case OPT_DATA: o.data = optarg; break;
        case OPT_ROWS:
            if (!nb_cli_number(optarg, 1, 1 << 20, &v))
                return nb_cli_bad_value("calibrate", options, code, "a number of tokens");
            o.rows = v;
            break;
        default:
            if ((rc = nb_cli_model_option("calibrate", code, argv, &model))) return rc;
        }
    }
    if (model.help) {
        fputs(usage, stdout);
        return NB_EXIT_OK;
    }
    if ((rc = nb_cli_model_finish("calibrate", argc, argv, "exact", &model, &lo))) return rc;
    if (!o.out) return nb_cli_usage("calibrate", "where to? Give -o FILE");
    if (model.scales || model.n_dequant || model.max_context || model.quant_input || model.packed_cache)
        return nb_cli_usage("calibrate", "--scales, --dequant, --quant-input, --packed-cache and "
                                         "--max-model-len have no meaning for this verb");
    if (lo.arith != NB_ARITH_EXACT && lo.arith != NB_ARITH_BF16)
        return nb_cli_usage("calibrate",
                            "--arith is exact or bf16: %s would measure behind the scales in question",
                            nb_arith_name(lo.arith));
    o.arith = lo.arith;
    o.act_bf16 = lo.act_bf16;
    o.kernels = lo.kernels;
    o.threads = lo.threads;
    if (nb_calibrate(model.dir, &o, &lo.sink, &c, &err) != NB_OK) return nb_cli_fail(&err);
    if (strcmp(model.format, "json") == 0)
        nb_calibration_json(&c, &report);
    else {
        nb_calibration_text(&c, &report);
        nb_buf_addf(&report,
                    "\nwrote %s: try it with `nibble run %s --arith w4a4 --scales %s`, write it into a copy "
                    "with `nibble repair`\n",
                    o.out, model.dir, o.out);
    }
    nb_calibration_free(&c);
    return nb_cli_print(&report, NB_EXIT_OK, NB_EXIT_FAILED);
}
