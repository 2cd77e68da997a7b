// One NCCL process without a GPU: loads NVIDIA's libnccl.so.2 as it is and has it run RAS for communicators that are
// made up. The library's own threads build the RAS network, serve the client socket and write every report.
//
//   rasrank LIBRARY LAYOUT ADDRESS
//
// LAYOUT names the library's internal functions and the members of its structures (make-layout). ADDRESS stands for the
// node: RAS identifies processes by it. Commands come on standard input, one a line, and each is answered by a line:
//
//   join COMM HASH SIZE RANK GPU   begins a communicator; the answer is this rank's description (hex)
//   meet COMM DESCRIPTIONS         ends it, given those of all ranks in order: from here on RAS reports it
//   launch COMM COLLECTIVE COUNT   counts launches, as a rank does that launches them: by the collective's name
//   set COMM MEMBER VALUE          what the rank says of itself: asyncResult, initState (ncclResult_t), finalizeCalled,
//                                  destroyFlag, or peerInfoValid (0: it has not met the others)
//   abort COMM                     raises its abort flag, as ncclCommAbort does first
//   leave COMM                     takes it away, as ncclCommDestroy does
//   fork                           makes a child that does nothing, as data loaders are made; the answer is its pid
//
// The end of standard input ends the process, in order.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FIELDS = 128, MAX_COMMS = 16, MAX_LINE = 1 << 20, IN_PROGRESS = 7, SPARE = 4096 };
static const char *const COLLECTIVES[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"};
enum { COLLECTIVE_COUNT = sizeof COLLECTIVES / sizeof *COLLECTIVES };

static struct { char name[64]; long offset, size; } fields[MAX_FIELDS];
static int field_count;
static struct { char name[32]; char *comm; long size; } comms[MAX_COMMS];
static int comm_count;
static int (*comm_init)(void *, void *), (*comm_fini)(void *), (*add_ranks)(void *, int);
static struct in_addr node;

static int field(const char *name) { // -1: this version has none
  for (int i = 0; i < field_count; i++)
    if (!strcmp(fields[i].name, name)) return i;
  return -1;
}

static long offset_of(const char *name) {
  int found = field(name);
  if (found >= 0) return fields[found].offset;
  fprintf(stderr, "the layout lacks %s\n", name);
  exit(2);
}

static void put(char *structure, const char *name, uint64_t value) { // little-endian, like all that NCCL runs on
  int found = field(name);
  if (found >= 0) memcpy(structure + fields[found].offset, &value, fields[found].size);
}

static uint64_t get(const char *structure, const char *name) {
  uint64_t value = 0;
  int found = field(name);
  if (found >= 0) memcpy(&value, structure + fields[found].offset, fields[found].size);
  return value;
}

static uint64_t hash_of(uint64_t text) { // FNV-1a over eight bytes
  uint64_t hash = 1469598103934665603ULL;
  for (int i = 0; i < 8; i++, text >>= 8) hash = (hash ^ (text & 255)) * 1099511628211ULL;
  return hash;
}

static void join(const char *name, uint64_t hash, long size, long rank, long gpu) {
  long description_size = offset_of("sizeof.rasRankInit");
  char *comm = calloc(1, offset_of("sizeof.ncclComm") + SPARE), *description = calloc(1, description_size);
  put(comm, "comm.commHash", hash);
  put(comm, "comm.rank", rank);
  put(comm, "comm.nRanks", size);
  put(comm, "comm.cudaDev", gpu);
  put(comm, "comm.nvmlDev", gpu);
  put(comm, "comm.abortFlag", (uint64_t)calloc(1, 64));
  put(comm, "comm.initState", IN_PROGRESS);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = node};
  memcpy(description + offset_of("rasRankInit.addr"), &address, sizeof address);
  put(description, "rasRankInit.pid", getpid());
  put(description, "rasRankInit.cudaDev", gpu);
  put(description, "rasRankInit.nvmlDev", gpu);
  put(description, "rasRankInit.hostHash", hash_of(node.s_addr));
  put(description, "rasRankInit.pidHash", hash_of((uint64_t)node.s_addr << 32 | getpid()));
  if (comm_init(comm, description)) { puts("error: ncclRasCommInit"); return; }
  snprintf(comms[comm_count].name, sizeof comms->name, "%s", name);
  comms[comm_count].comm = comm;
  comms[comm_count++].size = size;
  for (long i = 0; i < description_size; i++) printf("%02x", (unsigned char)description[i]);
  puts("");
}

static int digit(char hex) { return hex <= '9' ? hex - '0' : hex - 'a' + 10; }

static void meet(char *comm, long size, const char *hex) {
  long description_size = offset_of("sizeof.rasRankInit"), peer_size = offset_of("sizeof.ncclPeerInfo");
  char *descriptions = calloc(size, description_size), *peers = calloc(size + 1, peer_size);
  for (long i = 0; i < size * description_size; i++) descriptions[i] = digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]);
  uint64_t hash = get(comm, "comm.commHash");
  for (long rank = 0; rank < size; rank++) {
    char *peer = peers + rank * peer_size, *description = descriptions + rank * description_size;
    put(peer, "peerInfo.rank", rank);
    put(peer, "peerInfo.cudaDev", get(description, "rasRankInit.cudaDev"));
    put(peer, "peerInfo.nvmlDev", get(description, "rasRankInit.nvmlDev"));
    put(peer, "peerInfo.hostHash", get(description, "rasRankInit.hostHash") + hash);
    put(peer, "peerInfo.pidHash", get(description, "rasRankInit.pidHash") + hash);
  }
  put(comm, "comm.peerInfo", (uint64_t)peers);
  if (add_ranks(descriptions, size)) { puts("error: ncclRasAddRanks"); return; } // RAS keeps both arrays
  __sync_synchronize();
  put(comm, "comm.peerInfoValid", 1);
  put(comm, "comm.initState", 0);
  puts("ok");
}

static void launch(char *comm, const char *collective, uint64_t count) {
  for (int i = 0; i < COLLECTIVE_COUNT; i++)
    if (!strcmp(COLLECTIVES[i], collective)) {
      ((uint64_t *)(comm + offset_of("comm.seqNumber")))[i] += count;
      put(comm, "comm.collOpCount", get(comm, "comm.collOpCount") + count); // what RAS of 2.24 and 2.25 tells
      puts("ok");
      return;
    }
  puts("error: no such collective");
}

static void set(char *comm, const char *member, uint64_t value) {
  char name[64];
  snprintf(name, sizeof name, "comm.%s", member);
  put(comm, name, value);
  puts(field(name) < 0 ? "error: no such member" : "ok");
}

static void run_on(char *comm, long size, const char *line, const char *rest) {
  char word[32];
  uint64_t number;
  if (!strncmp(line, "meet ", 5)) meet(comm, size, rest);
  else if (!strncmp(line, "launch ", 7) && sscanf(rest, "%31s %lu", word, &number) == 2) launch(comm, word, number);
  else if (!strncmp(line, "set ", 4) && sscanf(rest, "%31s %lu", word, &number) == 2) set(comm, word, number);
  else if (!strncmp(line, "abort ", 6)) {
    *(uint32_t *)get(comm, "comm.abortFlag") = 1;
    puts("ok");
  } else if (!strncmp(line, "leave ", 6)) puts(comm_fini(comm) ? "error: ncclRasCommFini" : "ok");
  else puts("error: no such command");
}

static void run(char *line) {
  char name[32];
  uint64_t hash;
  long size, rank, gpu;
  int used = 0;
  if (sscanf(line, "join %31s %lx %ld %ld %ld", name, &hash, &size, &rank, &gpu) == 5 && comm_count < MAX_COMMS) {
    join(name, hash, size, rank, gpu);
    return;
  }
  if (!strcmp(line, "fork\n")) {
    pid_t child = fork();
    if (!child) for (;;) pause();
    printf("%d\n", child);
    return;
  }
  if (sscanf(line, "%*s %31s %n", name, &used) == 1)
    for (int i = 0; i < comm_count; i++) {
      if (strcmp(comms[i].name, name)) continue;
      run_on(comms[i].comm, comms[i].size, line, line + used);
      return;
    }
  puts("error: no such command or communicator");
}

int main(int argc, char **argv) {
  FILE *layout = argc == 4 ? fopen(argv[2], "r") : NULL;
  if (!layout || !inet_aton(argv[3], &node)) { fprintf(stderr, "usage: rasrank LIBRARY LAYOUT ADDRESS\n"); return 2; }
  while (field_count < MAX_FIELDS && fscanf(layout, "%63s %ld %ld", fields[field_count].name,
                                            &fields[field_count].offset, &fields[field_count].size) == 3) field_count++;
  fclose(layout);
  void *library = dlopen(argv[1], RTLD_LAZY | RTLD_LOCAL);
  struct link_map *map;
  if (!library || dlinfo(library, RTLD_DI_LINKMAP, &map)) { fprintf(stderr, "%s\n", dlerror()); return 2; }
  comm_init = (int (*)(void *, void *))(map->l_addr + offset_of("func.ncclRasCommInit"));
  comm_fini = (int (*)(void *))(map->l_addr + offset_of("func.ncclRasCommFini"));
  add_ranks = (int (*)(void *, int))(map->l_addr + offset_of("func.ncclRasAddRanks"));
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("%d\n", getpid());
  char *line = malloc(MAX_LINE);
  while (fgets(line, MAX_LINE, stdin)) run(line);
  return 0;
}
