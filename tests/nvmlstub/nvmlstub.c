/* A stub of NVIDIA's libnvidia-ml.so.1 for tests: no GPU behind it. What it answers stands in the file `node` beside
 * the library; it is read again when it was replaced, so a test can change the node under a running agent.
 *
 * A line is KEY VALUE. Keys of a GPU are gpuN.NAME or, for all that have none of their own, gpu*.NAME; where a value is
 * one of several (a field's scope, a link, a sensor) .SCOPE or .* follows. A value is a number, a text, or !CODE: the
 * call returns that NVML error. What has no line is not supported. Of the node itself:
 *   count N          GPUs
 *   init !CODE       NVML cannot be initialised
 *   generation N     a new number is a new driver: what was initialised before is not any more
 *   gpm_samples N    as many GPM samples can be allocated at once
 *   hang NAME        the call whose value is NAME returns only when the line is gone
 *   eventN GPU TYPE DATA    events in order; those there at registration are not delivered
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10 };
enum { SLOTS = 1 << 15, GPUS = 300, MIGS = 8 };

struct device { int gpu, mig; };
struct entry { char key[48], value[64]; };

static struct entry *table;
static struct stat seen;
static char generation[64];
static int initialized;
static unsigned long long delivered;
static struct device devices[GPUS][MIGS + 1];

static struct entry *slot(const char *key) {
    uint32_t hash = 2166136261u;
    for (const char *c = key; *c; c++) hash = (hash ^ (unsigned char)*c) * 16777619u;
    uint32_t at = hash % SLOTS;
    while (table[at].key[0] && strcmp(table[at].key, key)) at = (at + 1) % SLOTS;
    return &table[at];
}

static const char *get(const char *key) {
    struct entry *found = slot(key);
    return found->key[0] ? found->value : NULL;
}

static void refresh(void) {
    char path[4096];
    Dl_info self;
    struct stat now;
    dladdr((void *)refresh, &self);
    snprintf(path, sizeof path, "%s", self.dli_fname);
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, 8, "node");
    if (stat(path, &now)) return;
    if (table && now.st_ino == seen.st_ino && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    if (!table) table = malloc(SLOTS * sizeof *table);
    memset(table, 0, SLOTS * sizeof *table);
    char line[256], key[48], value[64];
    while (fgets(line, sizeof line, file))
        if (line[0] != '#' && sscanf(line, "%47s %63[^\n]", key, value) == 2) {
            struct entry *entry = slot(key);
            strcpy(entry->key, key);
            strcpy(entry->value, value);
        }
    fclose(file);
    seen = now;
}

static void hang(const char *name) {
    const char *hung;
    while ((hung = get("hang")) && !strcmp(hung, name)) {
        struct timespec pause = {0, 5000000};
        nanosleep(&pause, NULL);
        refresh();
    }
}

static int alive(void) {
    const char *now = get("generation");
    return initialized && !strcmp(generation, now ? now : "");
}

/* The value of a GPU, or NULL; `error` is what the call is to return. A scope below 0 is none. */
static const char *lookup(int gpu, const char *name, long scope, int *error) {
    char key[96];
    const char *value = NULL;
    hang(name);
    *error = alive() ? OK : UNINITIALIZED;
    if (*error) return NULL;
    if (gpu < 0) value = get(name);
    for (int try = 0; try < 4 && gpu >= 0 && !value; try++) {
        int length = try < 2 ? snprintf(key, sizeof key, "gpu%d.%s", gpu, name) : snprintf(key, sizeof key, "gpu*.%s", name);
        if (scope >= 0 && try % 2 == 0) snprintf(key + length, sizeof key - length, ".%ld", scope);
        if (scope >= 0 && try % 2 == 1) snprintf(key + length, sizeof key - length, ".*");
        value = get(key);
    }
    if (!value) *error = NOT_SUPPORTED;
    else if (value[0] == '!') *error = atoi(value + 1);
    return *error ? NULL : value;
}

static int number(struct device *device, const char *name, long scope, unsigned long long *out) {
    int error;
    const char *value = lookup(device->gpu, name, scope, &error);
    if (value) *out = value[0] == '-' ? (unsigned long long)strtoll(value, NULL, 0) : strtoull(value, NULL, 0);
    return error;
}

static int narrow(struct device *device, const char *name, long scope, unsigned *out) {
    unsigned long long value = 0;
    int error = number(device, name, scope, &value);
    if (!error) *out = (unsigned)value;
    return error;
}

static int text(struct device *device, const char *name, char *out, unsigned length) {
    int error;
    const char *value = lookup(device->gpu, name, -1, &error);
    if (value) snprintf(out, length, "%s", value);
    return error;
}

#define PLAIN(function, name) \
    int function(struct device *device, unsigned *out) { return narrow(device, name, -1, out); }
#define SCOPED(function, name) \
    int function(struct device *device, unsigned scope, unsigned *out) { return narrow(device, name, scope, out); }

PLAIN(nvmlDeviceGetPowerUsage, "power_usage")
PLAIN(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
PLAIN(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
PLAIN(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_max_generation")
PLAIN(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
PLAIN(nvmlDeviceGetMaxPcieLinkWidth, "pcie_max_width")
PLAIN(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
PLAIN(nvmlDeviceGetMaxMigDeviceCount, "mig_max")
SCOPED(nvmlDeviceGetClockInfo, "clock")
SCOPED(nvmlDeviceGetNvLinkState, "link_state")

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    refresh();
    if (!table) return UNINITIALIZED;
    hang("init");
    const char *error = get("init"), *now = get("generation");
    if (error && error[0] == '!') return atoi(error + 1);
    snprintf(generation, sizeof generation, "%s", now ? now : "");
    initialized = 1;
    return OK;
}

int nvmlShutdown(void) {
    int error = initialized ? OK : UNINITIALIZED;
    initialized = 0;
    return error;
}

int nvmlSystemGetCudaDriverVersion(int *out) {
    struct device node = {-1, 0};
    return narrow(&node, "cuda", -1, (unsigned *)out);
}

int nvmlSystemGetDriverVersion(char *out, unsigned length) {
    struct device node = {-1, 0};
    return text(&node, "driver", out, length);
}

int nvmlDeviceGetCount_v2(unsigned *out) {
    refresh();
    hang("count");
    const char *count = get("count");
    if (!alive()) return UNINITIALIZED;
    if (count && count[0] == '!') return atoi(count + 1);
    *out = count ? (unsigned)atoi(count) : 0;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **out) {
    unsigned long long ignored;
    if (index >= GPUS) return INVALID;
    struct device *device = &devices[index][0];
    device->gpu = (int)index;
    int error = number(device, "handle", -1, &ignored);
    if (error && error != NOT_SUPPORTED) return error;
    *out = device;
    return OK;
}

int nvmlDeviceGetUUID(struct device *device, char *out, unsigned length) {
    char name[32] = "uuid";
    if (device->mig) snprintf(name, sizeof name, "mig%d_uuid", device->mig - 1);
    return text(device, name, out, length);
}

int nvmlDeviceGetName(struct device *device, char *out, unsigned length) { return text(device, "name", out, length); }

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; };

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci *out) {
    memset(out, 0, sizeof *out);
    return text(device, "pci", out->address, sizeof out->address);
}

int nvmlDeviceGetUtilizationRates(struct device *device, unsigned *out) {
    int error = narrow(device, "utilization", 0, out);
    return error ? error : narrow(device, "utilization", 1, out + 1);
}

struct memory { unsigned version; unsigned long long total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory *out) {
    int error = number(device, "memory", 0, &out->total);
    if (!error) error = number(device, "memory", 1, &out->reserved);
    if (!error) error = number(device, "memory", 2, &out->free);
    return error ? error : number(device, "memory", 3, &out->used);
}

struct temperature { unsigned version, sensor; int celsius; };

int nvmlDeviceGetTemperatureV(struct device *device, struct temperature *out) {
    return narrow(device, "temperature", out->sensor, (unsigned *)&out->celsius);
}

int nvmlDeviceGetCurrentClocksEventReasons(struct device *device, unsigned long long *out) {
    return number(device, "clocks_event_reasons", -1, out);
}

int nvmlDeviceGetSupportedClocksEventReasons(struct device *device, unsigned long long *out) {
    return number(device, "clocks_event_supported", -1, out);
}

int nvmlDeviceGetRemappedRows(struct device *device, unsigned *a, unsigned *b, unsigned *pending, unsigned *failed) {
    int error = narrow(device, "remapped", 0, a);
    if (!error) error = narrow(device, "remapped", 1, b);
    if (!error) error = narrow(device, "remapped", 2, pending);
    return error ? error : narrow(device, "remapped", 3, failed);
}

int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending) {
    int error = narrow(device, "mig", -1, current);
    *pending = *current;
    return error;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **out) {
    char name[32];
    int error;
    if (index >= MIGS) return INVALID;
    snprintf(name, sizeof name, "mig%u_uuid", index);
    if (!lookup(device->gpu, name, -1, &error)) return error == NOT_SUPPORTED ? NOT_FOUND : error;
    *out = &devices[device->gpu][index + 1];
    (*out)->gpu = device->gpu;
    (*out)->mig = (int)index + 1;
    return OK;
}

struct process { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };

int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *count, struct process *out) {
    char name[32] = "processes", copy[64];
    int error;
    unsigned found = 0;
    if (device->mig) snprintf(name, sizeof name, "mig%d_processes", device->mig - 1);
    const char *value = lookup(device->gpu, name, -1, &error);
    if (!value) return error;
    if (value[0] == '*') {  /* an absurd number of processes */
        *count = (unsigned)strtoul(value + 1, NULL, 0);
        return TOO_SMALL;
    }
    snprintf(copy, sizeof copy, "%s", value);
    for (char *next = strtok(copy, " "); next; next = strtok(NULL, " "), found++)
        if (out && found < *count) out[found] = (struct process){(unsigned)strtoul(next, NULL, 0), 1 << 20, ~0u, ~0u};
    if (!found) { *count = 0; return OK; }
    if (!out || *count < found) { *count = found; return TOO_SMALL; }
    *count = found;
    return OK;
}

struct fabric { unsigned version; uint8_t cluster[16]; unsigned status, clique, state, health; };

int nvmlDeviceGetGpuFabricInfoV(struct device *device, struct fabric *out) {
    char cluster[40] = "";
    int error = narrow(device, "fabric_state", -1, &out->state);
    if (error) return error;
    narrow(device, "fabric_status", -1, &out->status);
    narrow(device, "fabric_clique", -1, &out->clique);
    narrow(device, "fabric_health", -1, &out->health);
    text(device, "fabric_cluster", cluster, sizeof cluster);
    for (int i = 0; i < 16 && cluster[2 * i]; i++) sscanf(cluster + 2 * i, "%2hhx", &out->cluster[i]);
    return OK;
}

/* GPM: a sample remembers whose it is and when it was taken; values are those of the later of two. */
struct sample { int gpu; unsigned long long taken; };
struct metric { unsigned id, error; double value; const char *texts[3]; };
struct metrics { unsigned version, count; struct sample *before, *after; struct metric all[477]; };

static struct sample samples[2 * GPUS];
static unsigned long long taken;
static unsigned allocated;

int nvmlGpmQueryDeviceSupport(struct device *device, unsigned *out) {
    return narrow(device, "gpm_support", -1, out + 1);
}

int nvmlGpmSampleAlloc(struct sample **out) {
    struct device node = {-1, 0};
    unsigned most = 2 * GPUS;
    int error = narrow(&node, "gpm_samples", -1, &most);
    if (error && error != NOT_SUPPORTED) return error;
    if (allocated >= most) return 20;
    for (unsigned i = 0; i < 2 * GPUS; i++)
        if (!samples[i].taken) {
            samples[i].taken = ++taken;
            allocated++;
            *out = &samples[i];
            return OK;
        }
    return 20;
}

int nvmlGpmSampleFree(struct sample *sample) {
    if (!sample->taken) abort();
    sample->taken = 0;
    allocated--;
    return alive() ? OK : UNINITIALIZED;
}

int nvmlGpmSampleGet(struct device *device, struct sample *sample) {
    unsigned long long ignored;
    if (!sample->taken) abort();
    int error = number(device, "gpm_sample", -1, &ignored);
    if (error) return error;
    *sample = (struct sample){device->gpu, ++taken};
    return OK;
}

int nvmlGpmMetricsGet(struct metrics *request) {
    struct sample *before = request->before, *after = request->after;
    int error;
    if (!before->taken || !after->taken) abort();
    if (request->version != 1 || before->gpu != after->gpu || before->taken >= after->taken) return INVALID;
    lookup(after->gpu, "gpm_metrics", -1, &error);
    if (error) return error;
    for (unsigned i = 0; i < request->count; i++) {
        const char *value = lookup(after->gpu, "gpm", request->all[i].id, (int *)&request->all[i].error);
        request->all[i].value = value ? strtod(value, NULL) : 0;
    }
    return OK;
}

struct field { unsigned id, scope; int64_t timestamp, latency; unsigned type, error; unsigned long long value; };

int nvmlDeviceGetFieldValues(struct device *device, int count, struct field *out) {
    char name[32];
    if (!alive()) return UNINITIALIZED;
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "field%u", out[i].id);
        long scope = out[i].scope == ~0u ? 65535 : out[i].scope;
        out[i].type = 3;
        out[i].value = 0;
        out[i].error = number(device, name, scope, &out[i].value);
        if (out[i].error == 15) return 15;
    }
    return OK;
}

int nvmlDeviceGetNvLinkErrorCounter(struct device *device, unsigned link, unsigned kind, unsigned long long *out) {
    char name[32];
    snprintf(name, sizeof name, "link_error%u", kind);
    return number(device, name, link, out);
}

int nvmlDeviceGetSupportedEventTypes(struct device *device, unsigned long long *out) {
    return number(device, "event_types", -1, out);
}

static const char *event_after(unsigned long long last) {
    char key[32];
    snprintf(key, sizeof key, "event%llu", last + 1);
    return get(key);
}

int nvmlEventSetCreate(void **out) {
    if (!alive()) return UNINITIALIZED;
    *out = &delivered;
    while (event_after(delivered)) delivered++;
    return OK;
}

int nvmlDeviceRegisterEvents(struct device *device, unsigned long long types, void *set) {
    unsigned long long supported = 0;
    (void)set;
    int error = number(device, "event_types", -1, &supported);
    return error ? error : (types & ~supported) ? NOT_SUPPORTED : OK;
}

struct event { struct device *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; };

int nvmlEventSetWait_v2(void *set, struct event *out, unsigned timeout_ms) {
    unsigned gpu;
    (void)set;
    (void)timeout_ms;
    refresh();
    hang("events");
    if (!alive()) return UNINITIALIZED;
    const char *line = event_after(delivered);
    if (!line) return TIMEOUT;
    delivered++;
    sscanf(line, "%u %llu %llu", &gpu, &out->type, &out->data);
    out->device = &devices[gpu][0];
    return OK;
}

int nvmlEventSetFree(void *set) { (void)set; return OK; }
