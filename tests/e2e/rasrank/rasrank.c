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
//   leave COMM                     takes it away, as ncclCommDestroy does
//   fork                           makes a child that does nothing, as data loaders are made; the answer is its pid
//
// The end of standard input ends the process.
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

static struct { char name[64]; long offset, size; } fields[MAX_FIELDS];
static int field_count;
static struct { char name[32]; char *comm; long size; } comms[MAX_COMMS];
static int comm_count;
static int (*comm_init)(void *, void *), (*comm_fini)(void *), (*add_ranks)(void *, int);
static struct in_addr node;

static int field(const char *name) {
  for (int i = 0; i < field_count; i++)
    if (!strcmp(fields[i].name, name)) return i;
  fprintf(stderr, "the layout lacks %s\n", name);
  exit(2);
}

static long offset_of(const char *name) { return fields[field(name)].offset; }

static void put(char *structure, const char *name, uint64_t value) { // little-endian, like all that NCCL runs on
  memcpy(structure + offset_of(name), &value, fields[field(name)].size);
}

static uint64_t get(const char *structure, const char *name) {
  uint64_t value = 0;
  memcpy(&value, structure + offset_of(name), fields[field(name)].size);
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

static void meet(char *comm, long size, const char *hex) {
  long description_size = offset_of("sizeof.rasRankInit"), peer_size = offset_of("sizeof.ncclPeerInfo");
  char *descriptions = calloc(size, description_size), *peers = calloc(size + 1, peer_size);
  for (long i = 0; i < size * description_size; i++) sscanf(hex + 2 * i, "%2hhx", (unsigned char *)descriptions + i);
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

static void run(char *line) {
  char name[32], *rest = line;
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
      if (!strncmp(line, "meet ", 5)) meet(comms[i].comm, comms[i].size, rest + used);
      else puts(comm_fini(comms[i].comm) ? "error: ncclRasCommFini" : "ok");
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
  puts("ready");
  char *line = malloc(MAX_LINE);
  while (fgets(line, MAX_LINE, stdin)) run(line);
  return 0;
}
