/* SPDX-License-Identifier: Apache-2.0
 * libhvd's whole face: one versioned table of C functions. The Python module, the TensorFlow shim and the XLA handlers
 * are clients of this table and of nothing else, so that all of them share one engine in a process.
 * Every struct starts with its own size: fields are only ever added at the end. */
#ifndef HVD_ENGINE_H_
#define HVD_ENGINE_H_

#include <hvd/codecs.h>
#include <hvd/settings.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HVD_ABI_VERSION 2u

typedef struct hvd_world hvd_world;

typedef enum hvd_code {
  HVD_OK = 0,
  HVD_IN_PROGRESS = 1,
  HVD_INVALID = 2,
  HVD_MISMATCH = 3,
  HVD_FAILED = 4,
  HVD_NOT_IMPLEMENTED = 5,
  HVD_TIMEOUT = 6
} hvd_code;

typedef enum hvd_kind {
  HVD_ALLREDUCE = 0,
  HVD_ALLGATHER = 1,
  HVD_BROADCAST = 2,
  HVD_ALLTOALL = 3,
  HVD_REDUCESCATTER = 4,
  HVD_BARRIER = 5,
  HVD_JOIN = 6,
  HVD_ADD_PROCESS_SET = 7,
  HVD_REMOVE_PROCESS_SET = 8
} hvd_kind;

typedef enum hvd_reduce_op {
  HVD_AVERAGE = 0,
  HVD_SUM = 1,
  HVD_ADASUM = 2,
  HVD_MIN = 3,
  HVD_MAX = 4,
  HVD_PRODUCT = 5
} hvd_reduce_op;

/* Every element type: X(id, number, name, bytes of an element, whether floating). Numbers 0 to 9 are Horovod's own; all
 * are part of what ranks send each other. FLOAT8_E4M3 is the "fn" variant, without infinities. */
#define HVD_DTYPES(X)                           \
  X(HVD_UINT8, 0, "uint8", 1, 0)                \
  X(HVD_INT8, 1, "int8", 1, 0)                  \
  X(HVD_UINT16, 2, "uint16", 2, 0)              \
  X(HVD_INT16, 3, "int16", 2, 0)                \
  X(HVD_INT32, 4, "int32", 4, 0)                \
  X(HVD_INT64, 5, "int64", 8, 0)                \
  X(HVD_FLOAT16, 6, "float16", 2, 1)            \
  X(HVD_FLOAT32, 7, "float32", 4, 1)            \
  X(HVD_FLOAT64, 8, "float64", 8, 1)            \
  X(HVD_BOOL, 9, "bool", 1, 0)                  \
  X(HVD_BFLOAT16, 10, "bfloat16", 2, 1)         \
  X(HVD_FLOAT8_E4M3, 11, "float8_e4m3fn", 1, 1) \
  X(HVD_FLOAT8_E5M2, 12, "float8_e5m2", 1, 1)   \
  X(HVD_UINT32, 13, "uint32", 4, 0)             \
  X(HVD_UINT64, 14, "uint64", 8, 0)

typedef enum hvd_dtype {
#define HVD_ENUMERATE(id, number, name, bytes, floating) id = number,
  HVD_DTYPES(HVD_ENUMERATE)
#undef HVD_ENUMERATE
} hvd_dtype;
enum { HVD_DTYPE_COUNT = HVD_UINT64 + 1 };

/* Bytes of an element; 0 for what is not a dtype. */
static inline uint32_t hvd_item_bytes(int32_t dtype) {
  switch (dtype) {
#define HVD_CASE(id, number, name, bytes, floating) \
  case id:                                          \
    return bytes;
    HVD_DTYPES(HVD_CASE)
#undef HVD_CASE
    default:
      return 0;
  }
}

static inline int32_t hvd_is_floating(int32_t dtype) {
  switch (dtype) {
#define HVD_CASE(id, number, name, bytes, floating) \
  case id:                                          \
    return floating;
    HVD_DTYPES(HVD_CASE)
#undef HVD_CASE
    default:
      return 0;
  }
}

enum { HVD_WILL_WAIT = 1, HVD_PROMPT = 2 };

typedef struct hvd_status {
  int32_t code;
  int32_t lost_rank; /* the peer to blame for HVD_FAILED, or -1 */
  char text[4096];
} hvd_status;

/* One field for each line of hvd/settings.h. */
#define HVD_FIELD(type, name, value) type name;
typedef struct hvd_settings {
  uint32_t size;
  HVD_SETTINGS(HVD_FIELD)
} hvd_settings;
#undef HVD_FIELD

typedef struct hvd_identity {
  uint32_t size;
  int32_t rank, world_size;
  const char* host;           /* host identity given by the launcher: equal means "may share memory" */
  const char* listen_address; /* numeric address to listen on */
  const char* world_id;       /* random per job */
  uint32_t generation;
  const uint8_t* secret;
  uint64_t secret_size;
} hvd_identity;

typedef struct hvd_peer {
  uint32_t size;
  int32_t rank;
  const char* host;
  const char* address; /* numeric address and port of its listener */
  int32_t port;
  const char* local_socket; /* name of its abstract unix socket */
  const char* machine;      /* whose cores it runs on: alike for hosts that are containers of one machine; may be "" */
} hvd_peer;

typedef struct hvd_op {
  uint32_t size;
  int32_t kind;      /* hvd_kind */
  int32_t dtype;     /* hvd_dtype */
  int32_t reduce_op; /* hvd_reduce_op */
  int32_t root;
  /* -1: memory of the host. Else the GPU's number in this process: the operation is done when its work has been
   * launched; let_wait orders what follows. Outputs that the engine allocates are there too. A join names the GPU on
   * which it takes part in what others reduce on theirs, if it has had no tensors there. */
  int32_t device;
  int32_t ndim;
  int32_t nsplits;
  const char* name;
  const int64_t* shape;
  const int64_t* splits;
  const void* input;
  void* output; /* NULL: allocated by `allocate` or by the engine (allgather, alltoall) */
  double prescale, postscale;
  /* Called once the output's shape is known, from the driving thread; NULL result fails the operation. */
  void* (*allocate)(void* context, const int64_t* shape, int32_t ndim);
  void* allocate_context;
  /* Allreduce of float32: HVD_FLOAT16 or HVD_BFLOAT16 rounds it to that type on the way, so that to the other ranks it
   * is a tensor of that type, and gives the result as float32 again. 0: as it is, and so is any other dtype, and all
   * in a world on one host, where there is nothing to save, unless it is deterministic. */
  int32_t wire_dtype;
  /* Of a tensor on a device: the framework's stream on which its contents come to be, and which may go on at once. */
  uint64_t stream;
} hvd_op;

/* Memory for tensors that the engine owns. In-place allreduces of tensors in it are not staged where all members of the
 * process set are on one host and do the same. */
typedef struct hvd_buffer {
  uint32_t size;
  int32_t shared; /* 0: ordinary memory, because there is none to share or no room; everything works, only slower */
  void* data;     /* zeroed if shared, on a page boundary */
  void* owner;    /* the engine's */
} hvd_buffer;

/* A piece of work for another library; see use_jobs. */
typedef struct hvd_job {
  uint32_t size;
  int32_t kind;  /* hvd_kind; add and remove_process_set: make or forget the group, which may wait for its members */
  int32_t dtype; /* hvd_dtype of the elements that are reduced; all else is counted in bytes */
  int32_t reduce_op; /* hvd_reduce_op: sum, product, and min and max of integers */
  int32_t root;      /* index of a member */
  uint32_t group;    /* 0: all ranks; else the number under which the group was made */
  int32_t members;
  int32_t in_place; /* the input lies where the output is to be */
  int64_t id;
  const int32_t* ranks; /* of the members */
  void* input;
  uint64_t input_bytes;
  void* output;
  uint64_t output_bytes;
  const int64_t* sent;     /* alltoall: bytes to each member; allgather: of this one */
  const int64_t* received; /* alltoall, allgather: bytes from each member; reducescatter: elements to each member */
} hvd_job;

typedef struct hvd_api {
  uint32_t version;
  uint32_t size;
  void (*default_settings)(hvd_settings*);
  /* Opens the listeners of a new world; NULL and a status on failure. */
  hvd_world* (*open)(const hvd_identity*, const hvd_settings*, hvd_status*);
  int32_t (*tcp_port)(hvd_world*);
  const char* (*local_socket)(hvd_world*);
  /* Meets all peers (the whole world, ordered by rank) and starts the engine. */
  int32_t (*connect)(hvd_world*, const hvd_peer*, int32_t count, double timeout_s, hvd_status*);
  /* Ends the world: every pending operation fails, peers are told, threads and descriptors are given back. Idempotent;
   * other functions may still be called and say that the world is gone. Waits first until devices are done with what
   * was launched there, which other ranks may have to come to; see `leave`. */
  void (*close)(hvd_world*);
  /* Frees what is left. No other call may be under way. */
  void (*destroy)(hvd_world*);
  /* Starts operations, each for itself (group NULL), or a group as one unit. Returns one handle > 0 for all, which is
   * done when they are and has the status of the first that failed; or 0 and a status, and none is started.
   * `on_done` may be NULL; it runs on the thread that finishes the work, never under an engine lock.
   * HVD_WILL_WAIT promises a wait at once on this thread, so that no other thread need be woken.
   * HVD_PROMPT, where prompt_stream has named one: the caller vouches that all members of the world call the same in
   * the same order, and it is launched on that stream, after what is on the caller's now, without asking them. It has
   * an output of its own; an alltoall's splits are followed by the rows that come from each member, and an allgather
   * may name those of all members in its splits. */
  int64_t (*submit)(hvd_world*, int32_t process_set, const hvd_op*, int32_t count, const char* group, uint32_t flags,
                    void (*on_done)(void* context, const hvd_status*), void* context, hvd_status*);
  int32_t (*poll)(hvd_world*, int64_t handle); /* 1 done, 0 not, -1 unknown handle */
  /* HVD_IN_PROGRESS after timeout_ms (the caller looks for signals and calls again), else the final code. */
  int32_t (*wait)(hvd_world*, int64_t handle, int32_t timeout_ms, hvd_status*);
  /* Results of a finished handle. Output memory the engine allocated passes to the caller: free with free_buffer. */
  void* (*take_output)(hvd_world*, int64_t handle, int32_t index, int64_t* rows, uint64_t* bytes);
  int32_t (*received_splits)(hvd_world*, int64_t handle, int64_t* rows, int32_t capacity);
  int64_t (*value)(hvd_world*, int64_t handle); /* join: last rank; add_process_set: new id */
  void (*release)(hvd_world*, int64_t handle);  /* forget a handle */
  void (*free_buffer)(void*);
  /* Tagged point to point. Completes like any other handle. `device`: the GPU that the data lie on, ready after what
   * is on `stream` by now, or -1: the host. When it is done the device is, too: no stream has to wait. */
  int64_t (*send)(hvd_world*, int32_t peer, int64_t tag, const void* data, uint64_t size, int32_t device,
                  uint64_t stream, hvd_status*);
  int64_t (*recv)(hvd_world*, int32_t peer, int64_t tag, void* data, uint64_t size, int32_t device, uint64_t stream,
                  hvd_status*);
  const char* (*describe)(hvd_world*); /* JSON: transports, kernels, counters */
  /* Writes what this rank does to a file as a Chrome trace, from now on. Ends a timeline that was being written. */
  int32_t (*start_timeline)(hvd_world*, const char* path, int32_t mark_cycles, hvd_status*);
  int32_t (*stop_timeline)(hvd_world*, hvd_status*);
  /* Fills a buffer of `bytes` for this world; HVD_OK or the reason. It belongs to this world's life: after `close`, and
   * even after `destroy`, the memory is still there until release_buffer, but no collective knows it any more. */
  int32_t (*allocate)(hvd_world*, uint64_t bytes, hvd_buffer*, hvd_status*);
  void (*release_buffer)(hvd_buffer*);
  /* Before connect: `tell` writes what the program is doing (its stack) and returns the number of bytes. Called when
   * other ranks wait for this one, on a thread of its own, which may be kept waiting; `context` must stay for ever. */
  void (*tell_stack)(hvd_world*, uint64_t (*tell)(void* context, char* text, uint64_t capacity), void* context);
  /* wait and release in one, but for HVD_IN_PROGRESS, which timeout_ms 0 gives at once. */
  int32_t (*finish)(hvd_world*, int64_t handle, int32_t timeout_ms, hvd_status*);
  /* Shared memory, on a page boundary, that is lent to the user again and again; NULL where there is none. To free with
   * free_buffer. While it is lent it is the user's own, also in forked children and after the world's end. lend and
   * take_back: 0 if it is not shared any more, or peers that have not heard of the end may write to it: to be freed. */
  void* (*allocate_lendable)(hvd_world*, uint64_t bytes);
  int32_t (*lend)(hvd_world*, void*);
  int32_t (*take_back)(void*);
  /* Before connect: `tell` writes about one thread of the program, by the number that `block` was given for it: first
   * '1' if no other thread of the program could submit anything, '2' if there are others of which the program does not
   * know that they call, else '0'; then where it is in the program, such as "train.py:12", if that is known; for '2',
   * then a line feed and the names of the others. Called when the thread has waited for a while, as tell_stack's is. */
  void (*tell_block)(hvd_world*, uint64_t (*tell)(void* context, uint64_t thread, char* text, uint64_t capacity),
                     void* context);
  /* From here to `unblock` this thread does nothing but wait for this handle, however long that takes. Ranks that wait
   * for each other for ever learn of it by this. Who may give up or do something else must not say so. */
  void (*block)(hvd_world*, int64_t handle, uint64_t thread);
  void (*unblock)(hvd_world*, uint64_t thread);
  /* Before connect, on all ranks or none: tensors travel by another library wherever that can do it. The client takes
   * the jobs on one thread, starts them in the order in which they come, without waiting for one before it starts the
   * next (other ranks may see those of other groups in another order), and says when each is done. */
  void (*use_jobs)(hvd_world*);
  /* HVD_OK; HVD_IN_PROGRESS if none has come within the time; HVD_FAILED when none will come any more. What a job
   * points to stays until finish_job; for ever, if that is never called. */
  int32_t (*next_job)(hvd_world*, uint32_t timeout_us, hvd_job*, hvd_status*);
  /* `error`: NULL if it went well; else the world ends with this text. */
  void (*finish_job)(hvd_world*, int64_t id, const char* error);
  /* Puts what the program did itself into the timeline, if one is written: times of the steady (monotonic) clock. */
  void (*show)(hvd_world*, const char* name, int64_t began_ns, int64_t ended_ns);
  /* Before connect, alike on all ranks: what an autotuner has found in an earlier world, instead of tuning again. */
  void (*use_tuning)(hvd_world*, uint64_t fusion_threshold, uint64_t cycle_time_us, uint64_t chunk_bytes);
  /* What is put on a stream of the device from here on waits for all operations that are done; the caller does not.
   * Fails once the world has ended because of a lost rank: what operations left on the device then is of no account,
   * also of those that were done before. */
  int32_t (*let_wait)(hvd_world*, int32_t device, uint64_t stream, hvd_status*);
  /* Of a finished handle whose output the engine allocated on a device: its rows, or -1; and its contents, put on the
   * stream as a copy to memory of the caller. The engine's memory is then its own again. */
  int64_t (*output_rows)(hvd_world*, int64_t handle, int32_t index);
  int32_t (*copy_output)(hvd_world*, int64_t handle, int32_t index, void* to, uint64_t stream, hvd_status*);
  /* See HVD_PROMPT: the stream, which stays for ever; 0: such operations are always agreed upon, -1: that is not known
   * before the first operation on a GPU is done. Alike on all ranks for all that comes after that one. */
  int64_t (*prompt_stream)(hvd_world*, int32_t device, int32_t kind, int32_t reduce_op, int32_t dtype, hvd_status*);
  /* Memory of a device, with anything in it: in-place allreduces of tensors that all members of the set have at the
   * same places of such memory are done where they lie. `address` is there; what is returned is for free_region, after
   * which the memory is the engine's, and before which it outlives the world. NULL and HVD_OK: the members are not
   * known to share the device, or not yet: that shows in the first operations there. */
  void* (*allocate_region)(hvd_world*, int32_t process_set, int32_t device, uint64_t bytes, uint64_t* address,
                           hvd_status*);
  void (*free_region)(void*);
  /* Like `close`, for callers that must not wait for long: HVD_IN_PROGRESS after so many milliseconds if devices are
   * not done yet, and the world goes on. 0: what they have not done is given up, at once, and a `close` under way too.
   */
  int32_t (*leave)(hvd_world*, int32_t timeout_ms);
  /* Whether members of a process set share GPUs: 1 or 0; -1: they have had no tensors there so far, or are one. */
  int32_t (*shares_gpus)(hvd_world*, int32_t process_set);
  /* Like leave(0), for a rank whose program has failed: every pending and later operation fails with this text, here
   * and on all ranks, which learn that this rank is to blame. 1 if the world ends for this reason, 0 if it had ended
   * before, or another thread is ending it. */
  int32_t (*fail)(hvd_world*, const char* why);
  /* Functions that need no world. */
  const hvd_codecs* codecs;
} hvd_api;

/* NULL if this library does not speak `version`. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const hvd_api* hvd_get_api(uint32_t version);

#ifdef __cplusplus
}
#endif
#endif /* HVD_ENGINE_H_ */
