/*
 * The scheduler. Blocks are promised before they are used: a running sequence has `reserved` blocks, those that it does not hold
 * yet are owed to it, and what is neither held by a sequence nor owed is free to be promised. So a sequence within its
 * reservation never waits for memory.
 */
#include "engine/sched.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define GROWTH 16        /* blocks that an open-ended sequence asks for at a time: 256 tokens */
#define ENOUGH 3         /* preempted so often, a sequence gets all it can ever need before it runs again */
#define WORTH_WAITING 32 /* tokens of prompt that another sequence is computing */
#define MOST_PASSED 64   /* of the queue looked at in a step while its head does not fit */

struct nb_sched {
    nb_sched_options opt;
    nb_pages *pages;
    size_t blocks, limit;   /* in all; tokens of one sequence */
    nb_sched_seq **running; /* [max_seqs] in order */
    size_t n_running;
    nb_sched_seq *first, *last; /* the queue, in order */
    size_t n_waiting;
    uint32_t *free_slots; /* [max_seqs] stack */
    size_t n_free;
    uint32_t *victims; /* [max_seqs] slots */
    uint64_t plans, preemptions;
};

/* What one plan hands out. */
typedef struct plan {
    nb_sched *s;
    nb_sched_part *parts;
    size_t n_parts, rows; /* rows left */
    size_t unpromised;    /* blocks */
    bool preempted;       /* at most one set of victims a step */
} plan;

static size_t blocks_of(size_t tokens)
{
    return nb_ceil_div(tokens, NB_BLOCK);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

nb_status nb_sched_new(const nb_sched_options *opt, nb_pages *pages, nb_sched **out, nb_error *err)
{
    if (!opt->max_seqs || opt->max_rows < opt->max_seqs) {
        nb_fail(err, NB_ERR_ARGUMENT, "steps of %zu tokens are too small for %zu sequences", opt->max_rows,
                opt->max_seqs);
        nb_error_remedy(err, "raise --max-num-batched-tokens or lower --max-num-seqs");
        return NB_ERR_ARGUMENT;
    }
    nb_sched *s = calloc(1, sizeof *s);
    if (!s) return nb_fail_nomem(err, "the scheduler", sizeof *s);
    s->opt = *opt;
    s->pages = pages;
    s->blocks = nb_pages_blocks(pages);
    s->limit = nb_sched_context(opt, s->blocks);
    s->running = calloc(opt->max_seqs, sizeof *s->running);
    s->free_slots = calloc(opt->max_seqs, sizeof *s->free_slots);
    s->victims = calloc(opt->max_seqs, sizeof *s->victims);
    if (!s->running || !s->free_slots || !s->victims) {
        nb_sched_free(s);
        return nb_fail_nomem(err, "the scheduler", opt->max_seqs * sizeof *s->running);
    }
    for (size_t i = opt->max_seqs; i > 0; i--) s->free_slots[s->n_free++] = (uint32_t)(i - 1);
    *out = s;
    return NB_OK;
}

void nb_sched_free(nb_sched *s)
{
    if (!s) return;
    free(s->running);
    free(s->free_slots);
    free(s->victims);
    free(s);
}

size_t nb_sched_context(const nb_sched_options *opt, size_t blocks)
{
    return blocks < opt->max_context / NB_BLOCK ? blocks * NB_BLOCK
                                                : least(opt->max_context, blocks * NB_BLOCK);
}

nb_status nb_sched_fits(const nb_sched_options *opt, size_t blocks, size_t n_prompt, size_t max_tokens,
                        bool open_ended, nb_error *err)
{
    size_t limit = nb_sched_context(opt, blocks), answer = open_ended ? 1 : max_tokens;
    if (n_prompt <= limit && answer <= limit - n_prompt) return NB_OK;
    nb_fail(err, NB_ERR_LIMIT, "%zu tokens of prompt and %zu of answer do not fit %s of %zu tokens", n_prompt,
            answer, limit == opt->max_context ? "the context" : "the KV memory", limit);
    nb_error_remedy(err, limit == opt->max_context ? "shorten the prompt, or ask for fewer tokens"
                                                   : "ask for fewer tokens, or give the server more memory");
    return NB_ERR_LIMIT;
}

/* ---- order ---- */

static bool before(const nb_sched *s, const nb_sched_seq *a, const nb_sched_seq *b)
{
    if (s->opt.priorities && a->priority != b->priority) return a->priority < b->priority;
    return a->arrival < b->arrival;
}

/* Who was preempted waits before who has not run yet. */
static bool queued_before(const nb_sched *s, const nb_sched_seq *a, const nb_sched_seq *b)
{
    bool same = !s->opt.priorities || a->priority == b->priority;
    if (same && (a->preempted > 0) != (b->preempted > 0)) return a->preempted > 0;
    return before(s, a, b);
}

static void enqueue(nb_sched *s, nb_sched_seq *q)
{
    q->prev = q->preempted ? NULL : s->last; /* searched from the end where its place is likely */
    while (q->prev && queued_before(s, q, q->prev)) q->prev = q->prev->prev;
    q->next = q->prev ? q->prev->next : s->first;
    while (q->preempted && q->next && !queued_before(s, q, q->next)) {
        q->prev = q->next;
        q->next = q->next->next;
    }
    *(q->prev ? &q->prev->next : &s->first) = q;
    *(q->next ? &q->next->prev : &s->last) = q;
    q->state = NB_SCHED_WAITING;
    s->n_waiting++;
}

static void dequeue(nb_sched *s, nb_sched_seq *q)
{
    *(q->prev ? &q->prev->next : &s->first) = q->next;
    *(q->next ? &q->next->prev : &s->last) = q->prev;
    q->prev = q->next = NULL;
    s->n_waiting--;
}

/* True when q has just become longer than turns_at: what the cache has, and what it has itself, are rows of shorter sequences. */
static bool turn(const nb_sched *s, nb_sched_seq *q)
{
    if (!s->opt.turns_at || q->turned || q->n_tokens <= s->opt.turns_at) return false;
    q->turned = q->unshared = true;
    q->plain = 0;
    return true;
}

void nb_sched_submit(nb_sched *s, nb_sched_seq *q)
{
    q->computed = q->cached = q->reserved = q->boundary = 0;
    q->preempted = 0;
    q->planned = 0;
    q->turned = q->unshared = false;
    q->plain = SIZE_MAX;
    turn(s, q);
    enqueue(s, q);
}

/* ---- blocks ---- */

/* All that q can ever hold. */
static size_t whole(const nb_sched *s, const nb_sched_seq *q)
{
    size_t room = s->limit - least(s->limit, q->n_prompt);
    return blocks_of(q->n_prompt + least(room, q->max_tokens));
}

/* What must be promised before q runs. */
static size_t at_admission(const nb_sched *s, const nb_sched_seq *q)
{
    size_t all = whole(s, q);
    if (q->preempted >= ENOUGH || (s->opt.reserve == NB_RESERVE_FULL && !q->open_ended)) return all;
    return least(all, blocks_of(q->n_tokens + 1));
}

static size_t owed(const nb_sched *s, const nb_sched_seq *q)
{
    return q->reserved - nb_pages_held(s->pages, q->slot);
}

static size_t unpromised(const nb_sched *s)
{
    size_t n = s->blocks - nb_pages_used(s->pages);
    for (size_t i = 0; i < s->n_running; i++) n -= owed(s, s->running[i]);
    return n;
}

/* Takes q off its slot. What it has computed stays in the cache for who asks next, itself perhaps. */
static void leave(nb_sched *s, nb_sched_seq *q)
{
    size_t at = 0;
    while (s->running[at] != q) at++;
    memmove(s->running + at, s->running + at + 1, (--s->n_running - at) * sizeof(nb_sched_seq *));
    if (!q->unshared) nb_pages_publish(s->pages, q->slot, q->tokens, q->computed, q->salt, true);
    nb_pages_clear(s->pages, q->slot);
    s->free_slots[s->n_free++] = q->slot;
    q->computed = q->reserved = q->boundary = q->planned = 0;
}

static void preempt(nb_sched *s, nb_sched_seq *q)
{
    leave(s, q);
    q->preempted++;
    s->preemptions++;
    enqueue(s, q);
}

/* The i-th sequence that may have to go for q: parked ones, then those that came after q, last come first. NULL: no more. */
static nb_sched_seq *victim(const nb_sched *s, const nb_sched_seq *q, size_t i)
{
    for (int parked = 1; parked >= 0; parked--)
        for (size_t k = s->n_running; k-- > 0;) {
            nb_sched_seq *v = s->running[k];
            if (!parked && v == q) break;
            if (v == q || v->parked != parked || v->planned == s->plans) continue;
            if (i-- == 0) return v;
        }
    return NULL;
}

/* Preempts as few as free `need` blocks now, or nobody when all of them would not. */
static void make_room(plan *p, const nb_sched_seq *q, size_t need)
{
    nb_sched *s = p->s;
    size_t n = 0, freed = 0, promised = 0;
    while (freed < need) {
        const nb_sched_seq *v = victim(s, q, n);
        if (!v) return;
        s->victims[n++] = v->slot;
        promised += owed(s, v);
        freed = promised + nb_pages_freed_by(s->pages, s->victims, n);
    }
    while (n-- > 0) preempt(s, victim(s, q, 0));
    p->preempted = true;
    p->unpromised = unpromised(s);
}

/* What an open-ended sequence gets beyond `blocks`, where free_blocks could be promised: little where little is left. */
static size_t growth(const nb_sched *s, const nb_sched_seq *q, size_t blocks, size_t free_blocks)
{
    if (s->opt.reserve != NB_RESERVE_FULL || !q->open_ended) return 0;
    return least(least(GROWTH, free_blocks / 4), whole(s, q) - blocks);
}

/* q's reservation covers `blocks`. */
static bool promise(plan *p, nb_sched_seq *q, size_t blocks)
{
    if (blocks <= q->reserved) return true;
    size_t need = blocks - q->reserved;
    if (need > p->unpromised && !p->preempted) make_room(p, q, need - p->unpromised);
    if (need > p->unpromised) return false;
    need += growth(p->s, q, blocks, p->unpromised - need);
    q->reserved += need;
    p->unpromised -= need;
    return true;
}

/* ---- plans ---- */

/* How many tokens of q this step may compute. */
static size_t share(const plan *p, const nb_sched_seq *q)
{
    const nb_sched *s = p->s;
    size_t n = least(q->n_tokens - q->computed, p->rows);
    if (s->opt.chunk_limit && s->n_running + s->n_waiting > 1) n = least(n, s->opt.chunk_limit);
    if (q->boundary > q->computed) n = least(n, q->boundary - q->computed);
    return n;
}

static void schedule(plan *p, nb_sched_seq *q)
{
    size_t n = share(p, q);
    if (!n || !promise(p, q, blocks_of(q->computed + n)) ||
        !nb_pages_grow(p->s->pages, q->slot, q->computed, q->computed + n))
        return;
    p->parts[p->n_parts++] = (nb_sched_part){
        .q = q, .from = q->computed, .n = n, .opened = !q->planned, .last = q->computed + n == q->n_tokens};
    p->rows -= n;
    q->planned = p->s->plans;
}

/* Of q's tokens those that the cache may be asked for, which always leaves one to compute. */
static size_t askable(const nb_sched_seq *q)
{
    return q->plain < q->n_tokens ? q->plain + 1 : q->n_tokens;
}

static size_t whole_blocks(size_t tokens)
{
    return tokens / NB_BLOCK * NB_BLOCK;
}

/* Whether another sequence computes in this very step what q begins with (choices of one request, a common system prompt): q
 * then waits until it can have that, rather than compute it too. */
static bool is_coming(const plan *p, const nb_sched_seq *q, size_t cached)
{
    const nb_sched *s = p->s;
    nb_sharing how = nb_pages_sharing(s->pages);
    for (size_t i = 0; i < s->n_running && how != NB_SHARE_NOTHING && !q->no_cache_read; i++) {
        const nb_sched_seq *r = s->running[i];
        if (r->planned != s->plans || r->unshared || r->n_tokens - r->computed < WORTH_WAITING) continue;
        if (strcmp(r->salt, q->salt) != 0) continue;
        size_t n = least(r->n_tokens, askable(q)) - 1, same = 0;
        while (same < n && r->tokens[same] == q->tokens[same]) same++;
        same = whole_blocks(same);
        if (how == NB_SHARE_ENDS && same < whole_blocks(r->n_tokens - 1)) continue;
        if (same > r->computed && same >= cached + WORTH_WAITING) return true;
    }
    return false;
}

typedef enum admission { ADMITTED, NO_ROOM, COMING } admission;

/* Gives q a slot, what the cache has of it, and its reservation. Otherwise nothing has changed: it does not fit now, or had better wait
 * for what is_coming. */
static admission admit(plan *p, nb_sched_seq *q)
{
    nb_sched *s = p->s;
    if (!s->n_free) return NO_ROOM;
    uint32_t slot = s->free_slots[s->n_free - 1];
    size_t need = at_admission(s, q), used = nb_pages_used(s->pages);
    if (need > p->unpromised + used) return NO_ROOM; /* not even if all of it is there */
    size_t cached = q->no_cache_read ? 0 : nb_pages_adopt(s->pages, slot, q->tokens, askable(q), q->salt);
    size_t taken = nb_pages_used(s->pages) - used, owing = need - nb_pages_held(s->pages, slot);
    bool fits = taken + owing <= p->unpromised;
    if (!fits || is_coming(p, q, cached)) {
        nb_pages_clear(s->pages, slot);
        return fits ? COMING : NO_ROOM;
    }
    p->unpromised -= taken + owing;
    s->n_free--;
    dequeue(s, q);
    size_t more = growth(s, q, need, p->unpromised);
    need += more;
    p->unpromised -= more;
    size_t known = nb_pages_known(s->pages, slot), at = s->n_running++;
    for (; at > 0 && before(s, q, s->running[at - 1]); at--) s->running[at] = s->running[at - 1];
    s->running[at] = q;
    q->state = NB_SCHED_RUNNING;
    q->slot = slot;
    q->computed = cached;
    q->reserved = need;
    q->boundary = known > cached ? known : 0;
    if (!q->preempted) q->cached = cached;
    return ADMITTED;
}

/* A reader that does not read keeps its seat only while nobody else needs it. False: there is none to send away. */
static bool send_parked_away(plan *p)
{
    nb_sched *s = p->s;
    for (size_t i = s->n_running; i-- > 0;) {
        if (!s->running[i]->parked || s->running[i]->planned == s->plans) continue;
        preempt(s, s->running[i]);
        p->unpromised = unpromised(s);
        return true;
    }
    return false;
}

static void admit_waiting(plan *p, double now)
{
    nb_sched *s = p->s;
    size_t looked_at = 0;
    for (nb_sched_seq *q = s->first, *next; q && p->rows; q = next) {
        next = q->next;
        if (q->parked) continue;
        admission a;
        while ((a = admit(p, q)) == NO_ROOM && send_parked_away(p)) {}
        if (a == ADMITTED)
            schedule(p, q);
        else if (a == NO_ROOM &&
                 (!s->n_free || now - q->arrival >= s->opt.bypass_seconds || ++looked_at == MOST_PASSED))
            return; /* no seat, or it has waited long enough: what becomes free is for it */
    }
}

/* Those that grew too long for what they have computed begin anew. */
static void turn_running(nb_sched *s)
{
    for (size_t i = s->n_running; i-- > 0;)
        if (turn(s, s->running[i])) preempt(s, s->running[i]);
}

size_t nb_sched_plan(nb_sched *s, double now, nb_sched_part *parts)
{
    turn_running(s);
    plan p = {.s = s, .parts = parts, .rows = s->opt.max_rows, .unpromised = unpromised(s)};
    s->plans++;
    for (int decodes = 1; decodes >= 0; decodes--)
        for (size_t i = 0; i < s->n_running; i++) {
            nb_sched_seq *q = s->running[i];
            if (q->parked || q->planned == s->plans || (q->n_tokens - q->computed == 1) != decodes) continue;
            schedule(&p, q);
            while (s->running[i] != q) i--; /* who made room for it may have stood before it */
        }
    if (!p.preempted) admit_waiting(&p, now);
    return p.n_parts;
}

void nb_sched_commit(nb_sched *s, const nb_sched_part *part, size_t n, bool publish)
{
    nb_sched_seq *q = part->q;
    size_t was = q->computed;
    q->computed += n;
    if (!publish && !q->unshared) q->plain = was;
    q->unshared |= !publish;
    if (q->unshared || !n) return;
    /* the whole prompt again must find its last boundary, and leave a token to compute */
    if (was < q->n_prompt && q->computed >= q->n_prompt)
        nb_pages_publish(s->pages, q->slot, q->tokens, q->computed - 1, q->salt, true);
    nb_pages_publish(s->pages, q->slot, q->tokens, q->computed, q->salt, q->computed == q->boundary);
}

void nb_sched_finish(nb_sched *s, nb_sched_seq *q)
{
    if (q->state == NB_SCHED_WAITING) dequeue(s, q);
    if (q->state == NB_SCHED_RUNNING) leave(s, q);
    q->state = NB_SCHED_NONE;
}

size_t nb_sched_running(const nb_sched *s)
{
    return s->n_running;
}

size_t nb_sched_waiting(const nb_sched *s)
{
    return s->n_waiting;
}

uint64_t nb_sched_preemptions(const nb_sched *s)
{
    return s->preemptions;
}

static nb_status check_running(const nb_sched *s, nb_error *err)
{
    size_t promised = nb_pages_used(s->pages);
    if (s->n_running + s->n_free != s->opt.max_seqs)
        return nb_fail(err, NB_ERR_FORMAT, "%zu seats taken and %zu free of %zu", s->n_running, s->n_free,
                       s->opt.max_seqs);
    for (size_t i = 0; i < s->n_running; i++) {
        const nb_sched_seq *q = s->running[i];
        size_t held = nb_pages_held(s->pages, q->slot);
        if (q->state != NB_SCHED_RUNNING || (i && before(s, q, s->running[i - 1])))
            return nb_fail(err, NB_ERR_FORMAT, "running sequence %zu is out of order", i);
        if (held > q->reserved || held < blocks_of(q->computed) || q->computed > q->n_tokens)
            return nb_fail(err, NB_ERR_FORMAT, "slot %u: %zu tokens computed of %zu, %zu blocks held of %zu",
                           q->slot, q->computed, q->n_tokens, held, q->reserved);
        for (size_t k = 0; k < i; k++)
            if (s->running[k]->slot == q->slot)
                return nb_fail(err, NB_ERR_FORMAT, "slot %u is given twice", q->slot);
        promised += q->reserved - held;
    }
    if (promised > s->blocks)
        return nb_fail(err, NB_ERR_FORMAT, "%zu blocks promised of %zu", promised, s->blocks);
    return NB_OK;
}

nb_status nb_sched_check(const nb_sched *s, nb_error *err)
{
    nb_status st = check_running(s, err);
    if (st != NB_OK) return st;
    for (size_t i = 0; i < s->n_free; i++) {
        uint32_t slot = s->free_slots[i];
        if (nb_pages_held(s->pages, slot))
            return nb_fail(err, NB_ERR_FORMAT, "free slot %u holds %zu blocks", slot,
                           nb_pages_held(s->pages, slot));
        for (size_t k = 0; k < s->n_running; k++)
            if (s->running[k]->slot == slot)
                return nb_fail(err, NB_ERR_FORMAT, "slot %u is taken and free", slot);
    }
    size_t n = 0;
    const nb_sched_seq *prev = NULL;
    for (const nb_sched_seq *q = s->first; q && n <= s->n_waiting; prev = q, q = q->next, n++)
        if (q->state != NB_SCHED_WAITING || q->prev != prev || (prev && queued_before(s, q, prev)))
            return nb_fail(err, NB_ERR_FORMAT, "place %zu of the queue is wrong", n);
    if (n != s->n_waiting || s->last != prev)
        return nb_fail(err, NB_ERR_FORMAT, "%zu wait, %zu counted", n, s->n_waiting);
    return NB_OK;
}
