/* nibble repair: a copy of a model folder in which what the file itself can prove is mended, and the way back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "doctor/repair.h"

enum { EXIT_DONE = 0, EXIT_REFUSED = 1, EXIT_NOTHING_WRITTEN = 2 };
enum { OPT_FORMAT = 1, OPT_SCALES, OPT_DEQUANT, OPT_ONLY, OPT_DRY_RUN, OPT_UNDO, OPT_DATA };

static const char help[] =
    "usage: nibble repair DIR -o OUT [options]\n"
    "       nibble repair --undo OUT -o BACK\n"
    "\n"
    "Writes a copy of a model folder in which the faults that `nibble check` finds are mended, as far as the "
    "files themselves\n"
    "prove how; all else is refused, with the reason. Everything that is not at fault stays byte for byte. "
    "The copy is checked and\n"
    "run before it gets its name; nibble_repair.json in it says what was done and leads back.\n"
    "\n"
    "  -o, --output OUT   the new folder; must not exist\n"
    "  --scales FILE      write the input scales that `nibble calibrate -o FILE` measured\n"
    "  --data FILE        measure the input scales first, on these texts (JSON lines {\"text\"} or "
    "{\"messages\"})\n"
    "  --dequant PATTERN  linears whose name matches this glob become BF16, and the config says so "
    "(repeatable)\n"
    "  --only RULE,…      mend these rules' findings alone; measured scales are written all the same, but "
    "narrowed "
    "to what\n"
    "                     NB104, NB105, NB106 or NB108 found when it names one of these\n"
    "  --dry-run          say what would be done; write nothing\n"
    "  --undo             OUT's source again, byte for byte, as the folder BACK\n"
    "  --format F         text (default) or json: JSON alone on stdout\n"
    "  -q, --quiet        no progress and notes on stderr\n"
    "\n"
    "Exit status: 0 done, nothing above a note is left (nor was, when there was nothing to repair: then "
    "nothing is written);\n"
    "1 something was refused (and nothing written if that was all); 2 failed, nothing written; 64 usage.\n"
    "\n"
    "  nibble repair broken -o mended\n"
    "  nibble calibrate broken --data prompts.jsonl -o scales.safetensors; nibble repair broken -o mended "
    "--scales "
    "scales.safetensors\n"
    "  nibble repair broken -o mended --dequant '*.self_attn.*'\n";

typedef struct request {
    nb_repair_options opt;
    const char *dir;
    char *only; /* a copy of the list, cut at its commas */
    bool json, quiet, undo;
} request;

static int repair(const request *r)
{
    nb_repair_result result;
    nb_error err;
    nb_sink sink;
    nb_buf out = {0};
    nb_cli_sink(&sink, r->quiet);
    if (r->undo) {
        if (nb_repair_undo(r->dir, r->opt.out, &sink, &err) != NB_OK) {
            nb_cli_fail(&err);
            return EXIT_NOTHING_WRITTEN;
        }
        if (r->json)
            nb_buf_adds(&out, "{\"applied\":[],\"refused\":[],\"check\":null,\"undone\":true}\n");
        else
            nb_buf_addf(&out, "%s is what %s was repaired from\n", r->opt.out, r->dir);
        return nb_cli_print(&out, EXIT_DONE, EXIT_NOTHING_WRITTEN);
    }
    if (nb_repair_folder(r->dir, &r->opt, &sink, &result, &err) != NB_OK) {
        nb_cli_fail(&err);
        nb_repair_result_free(&result);
        return EXIT_NOTHING_WRITTEN;
    }
    if (r->json)
        nb_repair_json(&result, &out);
    else
        nb_repair_text(&result, &out);
    int code = result.refused.count ? EXIT_REFUSED : EXIT_DONE;
    nb_repair_result_free(&result);
    return nb_cli_print(&out, code, EXIT_NOTHING_WRITTEN);
}

/* Cuts "NB101,NB102" into opt->only. NB_EXIT_OK, or the exit code after having printed why. */
static int split_rules(const char *list, request *r, const char **rules, size_t cap)
{
    free(r->only);
    r->only = strdup(list);
    if (!r->only) {
        fputs("nibble: no memory for the options\n", stderr);
        return EXIT_NOTHING_WRITTEN;
    }
    char *state = NULL;
    r->opt.n_only = 0;
    r->opt.only = rules;
    for (char *rule = strtok_r(r->only, ",", &state); rule; rule = strtok_r(NULL, ",", &state)) {
        if (!nb_rule_find(rule))
            return nb_cli_usage("repair", "--only takes rules (nibble check --rules lists them), not '%s'",
                                rule);
        if (r->opt.n_only == cap) return nb_cli_usage("repair", "--only names a rule more than once");
        rules[r->opt.n_only++] = nb_rule_find(rule)->code;
    }
    if (!r->opt.n_only) return nb_cli_usage("repair", "--only takes rules: NB101,NB107");
    return NB_EXIT_OK;
}

static int parse(int argc, char **argv, request *r, const char **rules, size_t cap, const char **dequant)
{
    static const struct option options[] = {{"output", required_argument, NULL, 'o'},
                                            {"format", required_argument, NULL, OPT_FORMAT},
                                            {"scales", required_argument, NULL, OPT_SCALES},
                                            {"dequant", required_argument, NULL, OPT_DEQUANT},
                                            {"only", required_argument, NULL, OPT_ONLY},
                                            {"data", required_argument, NULL, OPT_DATA},
                                            {"dry-run", no_argument, NULL, OPT_DRY_RUN},
                                            {"undo", no_argument, NULL, OPT_UNDO},
                                            {"quiet", no_argument, NULL, 'q'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    int code;
    optind = 1;
    opterr = 0;
    r->opt.dequant = dequant;
    for (int o; (o = getopt_long(argc, argv, ":o:qh", options, NULL)) != -1;) {
        switch (o) {
        case 'o': r->opt.out = optarg; break;
        case OPT_FORMAT:
            r->json = strcmp(optarg, "json") == 0;
            if (!r->json && strcmp(optarg, "text") != 0)
                return nb_cli_bad_value("repair", options, o, "text or json");
            break;
        case OPT_SCALES: r->opt.scales = optarg; break;
        case OPT_DEQUANT: dequant[r->opt.n_dequant++] = optarg; break;
        case OPT_ONLY:
            if ((code = split_rules(optarg, r, rules, cap)) != NB_EXIT_OK) return code;
            break;
        case OPT_DATA:
            r->opt.calibrate = true;
            r->opt.data = optarg;
            break;
        case OPT_DRY_RUN: r->opt.dry_run = true; break;
        case OPT_UNDO: r->undo = true; break;
        case 'q': r->quiet = true; break;
        case 'h':
            fputs(help, stdout);
            r->dir = NULL;
            r->opt.out = NULL;
            return NB_EXIT_OK;
        default: return nb_cli_bad_option("repair", o, argv);
        }
    }
    if (optind >= argc) return nb_cli_usage("repair", "which model? Give its folder");
    if (optind + 1 < argc)
        return nb_cli_usage("repair", "one folder at a time; what is '%s'?", argv[optind + 1]);
    if (!r->opt.out && !r->opt.dry_run)
        return nb_cli_usage("repair", "where to? Give the new folder with -o");
    if (r->opt.calibrate && (r->opt.scales || r->opt.dry_run))
        return nb_cli_usage("repair", "--data measures: it goes neither with --scales nor with --dry-run");
    if (r->undo && (r->opt.calibrate || r->opt.scales || r->opt.n_dequant || r->opt.n_only || r->opt.dry_run))
        return nb_cli_usage("repair", "--undo takes no other option than -o");
    r->dir = argv[optind];
    return NB_EXIT_OK;
}

int nb_cmd_repair(int argc, char **argv)
{
    request r = {0};
    const size_t cap = 64;
    const char **rules = calloc(cap, sizeof *rules), **dequant = calloc((size_t)argc + 1, sizeof *dequant);
    int code = EXIT_NOTHING_WRITTEN;
    if (!rules || !dequant) {
        fputs("nibble: no memory for the options\n", stderr);
        goto out;
    }
    code = parse(argc, argv, &r, rules, cap, dequant);
    if (code == NB_EXIT_OK && r.dir) code = repair(&r);
out:
    free(r.only);
    free(rules);
    free(dequant);
    return code;
}
