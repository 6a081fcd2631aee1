/* nibble diff: two model folders, or two traces. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "doctor/diff.h"

enum { OPT_FORMAT = 1, OPT_TOLERANCE };

static const char help[] =
    "usage: nibble diff A B [options]\n"
    "\n"
    "Two model folders: for each tensor the cosine and the largest difference of its values (linears are "
    "dequantised, so the same\n"
    "weight in two formats can be compared) and the number of bytes that differ; and the keys in which their "
    "configs differ. Two\n"
    "JSON files of nibble trace, or of tools/torch_taps.py: row by row, and the first that differs.\n"
    "\n"
    "  --tolerance T   traces: relative difference of in_amax or out_amax that counts (default 0.05)\n"
    "  --format F      text (default): what differs; json: everything, JSON alone on stdout\n"
    "  -q, --quiet     no progress on stderr\n"
    "\n"
    "Exit status: 0 compared (whatever came out), 1 failed, 64 usage.\n"
    "\n"
    "  nibble diff broken mended\n"
    "  nibble diff ours.json theirs.json\n";

static bool is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* A trace that is not there: the other side says that files were meant. NB_EXIT_OK when nothing is missing so. */
static int missing_trace(const char *path, const char *other)
{
    nb_error err = {.status = NB_ERR_MISSING, .offset = -1};
    struct stat st;
    const size_t n = strlen(path);
    if (stat(path, &st) == 0 || !(is_file(other) || (n > 5 && strcmp(path + n - 5, ".json") == 0)))
        return NB_EXIT_OK;
    snprintf(err.file, sizeof err.file, "%s", path);
    snprintf(err.cause, sizeof err.cause, "there is no such file");
    snprintf(err.remedy, sizeof err.remedy,
             "make it with `nibble trace DIR --format json` or tools/torch_taps.py");
    return nb_cli_fail(&err);
}

static int diff(const char *a, const char *b, double tolerance, bool json, bool quiet)
{
    nb_buf out = {0};
    nb_error err;
    nb_sink sink;
    nb_cli_sink(&sink, quiet);
    int rc = missing_trace(a, b);
    if (rc == NB_EXIT_OK) rc = missing_trace(b, a);
    if (rc != NB_EXIT_OK) return rc;
    if (is_file(a) != is_file(b))
        return nb_cli_usage("diff", "'%s' is a file, '%s' is not: give two model folders, or two traces",
                            is_file(a) ? a : b, is_file(a) ? b : a);
    if (is_file(a)) {
        if (nb_diff_traces(a, b, tolerance, json, &out, &err) == NB_OK)
            return nb_cli_print(&out, NB_EXIT_OK, NB_EXIT_FAILED);
        nb_buf_free(&out);
        return nb_cli_fail(&err);
    }
    nb_diff d = {0};
    if (nb_diff_folders(a, b, &sink, &d, &err) != NB_OK) return nb_cli_fail(&err);
    if (json)
        nb_diff_json(&d, &out);
    else
        nb_diff_text(&d, &out);
    nb_diff_free(&d);
    return nb_cli_print(&out, NB_EXIT_OK, NB_EXIT_FAILED);
}

int nb_cmd_diff(int argc, char **argv)
{
    static const struct option options[] = {{"format", required_argument, NULL, OPT_FORMAT},
                                            {"tolerance", required_argument, NULL, OPT_TOLERANCE},
                                            {"quiet", no_argument, NULL, 'q'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    bool json = false, quiet = false;
    double tolerance = 0.05;
    optind = 1;
    opterr = 0;
    for (int o; (o = getopt_long(argc, argv, ":qh", options, NULL)) != -1;) {
        switch (o) {
        case OPT_FORMAT:
            json = strcmp(optarg, "json") == 0;
            if (!json && strcmp(optarg, "text") != 0)
                return nb_cli_bad_value("diff", options, o, "text or json");
            break;
        case OPT_TOLERANCE:
            if (!nb_cli_real(optarg, &tolerance) || tolerance < 0)
                return nb_cli_bad_value("diff", options, o, "a number from 0 up");
            break;
        case 'q': quiet = true; break;
        case 'h': fputs(help, stdout); return NB_EXIT_OK;
        default: return nb_cli_bad_option("diff", o, argv);
        }
    }
    if (argc - optind != 2) return nb_cli_usage("diff", "give two folders, or two trace files");
    return diff(argv[optind], argv[optind + 1], tolerance, json, quiet);
}
