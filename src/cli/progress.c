/* Progress and log lines on stderr: a bar with bytes, rate and time left on a terminal, a line each ten seconds elsewhere. */
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"

/* The program has one sink; its state is the program's, not the library's. */
static struct {
    bool quiet, tty, drawn;
    double start, last;
} state;

static void wipe(void)
{
    if (state.drawn) fputs("\r\033[K", stderr);
    state.drawn = false;
}

static void log_line(void *ctx, nb_log_level level, const char *line)
{
    if (state.quiet && level < NB_LOG_WARN) return;
    wipe();
    fprintf(stderr, "%s%s\n",
            level == NB_LOG_WARN    ? "warning: "
            : level == NB_LOG_ERROR ? "error: "
                                    : "",
            line);
}

static int columns(void)
{
    struct winsize w;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col ? w.ws_col : 80;
}

/* What the library counts one by one; everything else is bytes. */
static bool is_count(const char *what)
{
    static const char *const things[] = {"tokens", "layers", "linears"};
    for (size_t i = 0; i < sizeof things / sizeof *things; i++)
        if (strstr(what, things[i])) return true;
    return false;
}

static void progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    double t = nb_now();
    if (state.start == 0) state.start = state.last = t;
    bool end = done >= total;
    if (state.quiet || (!end && t - state.last < (state.tty ? 0.1 : 10))) {
        if (end) state.start = 0;
        return;
    }
    state.last = t;
    double seconds = t - state.start, rate = seconds > 0 ? (double)done / seconds : 0;
    double left = rate > 0 && total > done ? (double)(total - done) / rate : 0;
    char text[160];
    bool count = is_count(what);
    double unit = count ? 1 : 1e6;
    int digits = count ? 0 : 1;
    const char *name = count ? "" : " MB";
    snprintf(text, sizeof text, "%s: %.*f of %.*f%s, %.*f%s/s, %.0f s left", what, digits,
             (double)done / unit, digits, (double)total / unit, name, rate / unit < 10 ? 1 : 0, rate / unit,
             name, left);
    if (state.tty && !end) {
        int width = columns() - (int)strlen(text) - 4,
            full = width > 0 ? (int)((double)done / (double)total * width) : 0;
        fprintf(stderr, "\r\033[K%s ", text);
        for (int i = 0; i < width; i++) fputc(i < full ? '#' : '.', stderr);
        fflush(stderr);
        state.drawn = true;
        return;
    }
    wipe();
    if (!end)
        fprintf(stderr, "%s\n", text);
    else if (seconds >= 1)
        fprintf(stderr, "%s: %.*f%s in %.1f s\n", what, digits, (double)total / unit, name, seconds);
    if (end) state.start = 0;
}

void nb_cli_sink(nb_sink *out, bool quiet)
{
    state.quiet = quiet;
    state.tty = isatty(STDERR_FILENO);
    *out = (nb_sink){.log = log_line, .progress = progress};
}
