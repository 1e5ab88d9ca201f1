/* SPDX-License-Identifier: Apache-2.0
 * The complete interface of libhvd: one versioned table of C functions. The Python module, the TensorFlow operations
 * and the XLA handlers use only this table, so that all of them share one engine in a process.
 * Every struct starts with its own size; fields are only ever added at the end. */
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

/* All element types: X(id, number, name, bytes per element, is floating). Numbers 0 to 9 are Horovod's. Ranks send
 * each other these numbers, so they never change. FLOAT8_E4M3 is the "fn" variant, without infinities. */
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

/* Return the bytes of an element, or 0 if `dtype` is not an hvd_dtype. */
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
  int32_t lost_rank; /* the rank that caused HVD_FAILED, or -1 */
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
  const char* host;           /* the launcher's identifier of the host; ranks with equal values may share memory */
  const char* listen_address; /* numeric address to listen on */
  const char* world_id;       /* random identifier of the job */
  uint32_t generation;
  const uint8_t* secret;
  uint64_t secret_size;
} hvd_identity;

typedef struct hvd_peer {
  uint32_t size;
  int32_t rank;
  const char* host;
  const char* address; /* numeric address of its listener */
  int32_t port;
  const char* local_socket; /* name of its abstract unix socket */
  const char* machine; /* machine whose cores it uses: equal for hosts that are containers of one machine; may be "" */
} hvd_peer;

typedef struct hvd_op {
  uint32_t size;
  int32_t kind;      /* hvd_kind */
  int32_t dtype;     /* hvd_dtype */
  int32_t reduce_op; /* hvd_reduce_op */
  int32_t root;
  /* -1 for host memory, else the GPU's number in this process. An operation on a GPU is done when its work has been
   * launched; use let_wait to order later work after it. Outputs that the engine allocates are on this device too. A
   * join names the GPU on which this rank takes part in the reductions of the other ranks if it has had no tensors
   * on a GPU before. */
  int32_t device;
  int32_t ndim;
  int32_t nsplits;
  const char* name;
  const int64_t* shape;
  const int64_t* splits;
  const void* input;
  void* output; /* NULL: allocated by `allocate` or by the engine (allgather, alltoall) */
  double prescale, postscale;
  /* Called from the thread that drives the engine, once the output's shape is known. The operation fails if it
   * returns NULL. */
  void* (*allocate)(void* context, const int64_t* shape, int32_t ndim);
  void* allocate_context;
  /* Type that float32 allreduces are sent in: HVD_FLOAT16 or HVD_BFLOAT16 rounds the tensor to that type, so that
   * the other ranks treat it as a tensor of that type, and converts the result back to float32. 0 sends float32.
   * Ignored for other dtypes, for tensors on devices, and in a world on one host (where it saves nothing) unless the
   * world is deterministic. */
  int32_t wire_dtype;
  /* For a tensor on a device: the framework's stream that produces its contents. The stream is not blocked. */
  uint64_t stream;
} hvd_op;

/* Memory for tensors that the engine owns. In-place allreduces of tensors in it skip the staging copy if all members
 * of the process set are on one host and use such memory too. */
typedef struct hvd_buffer {
  uint32_t size;
  int32_t shared; /* 0: ordinary memory, which also works but is slower, because no shared memory is available */
  void* data;     /* page-aligned; zeroed if shared */
  void* owner;    /* used by the engine only */
} hvd_buffer;

/* One operation that an external library executes for the engine; see use_jobs. */
typedef struct hvd_job {
  uint32_t size;
  int32_t kind; /* hvd_kind; for add and remove_process_set: create or free the group, which may wait for its members */
  int32_t dtype;     /* hvd_dtype of reduced elements; other kinds are counted in bytes */
  int32_t reduce_op; /* hvd_reduce_op: sum or product; min or max of integers only */
  int32_t root;      /* index of the root among the members */
  uint32_t group;    /* 0: all ranks; else the number under which the group was created */
  int32_t members;
  int32_t in_place; /* 1 if the input already lies in the output's memory */
  int64_t id;
  const int32_t* ranks; /* ranks of the members */
  void* input;
  uint64_t input_bytes;
  void* output;
  uint64_t output_bytes;
  const int64_t* sent;     /* alltoall: bytes to each member; allgather: bytes from this member */
  const int64_t* received; /* alltoall, allgather: bytes from each member; reducescatter: elements to each member */
} hvd_job;

typedef struct hvd_api {
  uint32_t version;
  uint32_t size;
  void (*default_settings)(hvd_settings*);
  /* Open the listeners of a new world. Returns NULL and a status on failure. */
  hvd_world* (*open)(const hvd_identity*, const hvd_settings*, hvd_status*);
  int32_t (*tcp_port)(hvd_world*);
  const char* (*local_socket)(hvd_world*);
  /* Connect to all peers (the whole world, ordered by rank) and start the engine. */
  int32_t (*connect)(hvd_world*, const hvd_peer*, int32_t count, double timeout_s, hvd_status*);
  /* End the world: fail every pending operation, notify the peers, release threads and descriptors. Safe to call
   * twice; later calls of other functions report that the world is gone. First waits until the devices have finished
   * the work launched on them, which may depend on other ranks; see `leave`. */
  void (*close)(hvd_world*);
  /* Free the world. No other call may be running. */
  void (*destroy)(hvd_world*);
  /* Start operations: independent ones if group is NULL, else all as one unit. Returns one handle > 0 for all of
   * them, which is done when all are done and has the status of the first one that failed. On an error, returns 0
   * and a status, and starts none.
   * `on_done` may be NULL; it runs on the thread that finishes the work, never under an engine lock.
   * HVD_WILL_WAIT promises that this thread waits immediately, so that the engine need not wake another thread.
   * HVD_PROMPT launches the operations on the stream that prompt_stream returned, after the work that is now on the
   * caller's stream, without negotiation. The caller guarantees that all members of the world submit these operations
   * in one order. They need an output buffer. An alltoall's splits are followed by the rows that come from each member;
   * an allgather may list the rows of all members in its splits. */
  int64_t (*submit)(hvd_world*, int32_t process_set, const hvd_op*, int32_t count, const char* group, uint32_t flags,
                    void (*on_done)(void* context, const hvd_status*), void* context, hvd_status*);
  int32_t (*poll)(hvd_world*, int64_t handle); /* 1 done, 0 not done, -1 unknown handle */
  /* Return the final code, or HVD_IN_PROGRESS after timeout_ms (the caller checks for signals and calls again). */
  int32_t (*wait)(hvd_world*, int64_t handle, int32_t timeout_ms, hvd_status*);
  /* Return a result of a finished handle. Memory that the engine allocated passes to the caller, who frees it with
   * free_buffer. */
  void* (*take_output)(hvd_world*, int64_t handle, int32_t index, int64_t* rows, uint64_t* bytes);
  int32_t (*received_splits)(hvd_world*, int64_t handle, int64_t* rows, int32_t capacity);
  int64_t (*value)(hvd_world*, int64_t handle); /* join: last rank to join; add_process_set: new id */
  void (*release)(hvd_world*, int64_t handle);
  void (*free_buffer)(void*);
  /* Send or receive a tagged message between two ranks; the handle works as for other operations. `device` is the
   * GPU that holds the data, which is ready after the work now on `stream`, or -1 for host memory. When the handle
   * is done, the device has finished too, so no stream has to wait. */
  int64_t (*send)(hvd_world*, int32_t peer, int64_t tag, const void* data, uint64_t size, int32_t device,
                  uint64_t stream, hvd_status*);
  int64_t (*recv)(hvd_world*, int32_t peer, int64_t tag, void* data, uint64_t size, int32_t device, uint64_t stream,
                  hvd_status*);
  const char* (*describe)(hvd_world*); /* JSON: transports, kernels, counters */
  /* Start writing this rank's activity to a file as a Chrome trace. Ends a timeline that is being written. */
  int32_t (*start_timeline)(hvd_world*, const char* path, int32_t mark_cycles, hvd_status*);
  int32_t (*stop_timeline)(hvd_world*, hvd_status*);
  /* Fill in a buffer of `bytes` for this world and return HVD_OK, or return the error. The memory stays valid until
   * release_buffer, even after `close` and `destroy`, but no collective uses it as shared memory any more. */
  int32_t (*allocate)(hvd_world*, uint64_t bytes, hvd_buffer*, hvd_status*);
  void (*release_buffer)(hvd_buffer*);
  /* Set the function that describes what the program is doing (its stack). `tell` writes text and returns its number
   * of bytes. The engine calls it on a separate thread, which may block, when other ranks wait for this one. Call
   * before connect; `context` must stay valid until the process ends. */
  void (*tell_stack)(hvd_world*, uint64_t (*tell)(void* context, char* text, uint64_t capacity), void* context);
  /* Wait for a handle and release it, unless the result is HVD_IN_PROGRESS (immediately if timeout_ms is 0). */
  int32_t (*finish)(hvd_world*, int64_t handle, int32_t timeout_ms, hvd_status*);
  /* Allocate page-aligned shared memory that can be lent to the user repeatedly, or return NULL if there is none.
   * Free it with free_buffer. While it is lent only the user uses it, also in forked children and after the world
   * ends. lend and take_back return 0 if the memory must be freed instead: it is no longer shared, or peers that do
   * not know yet that the world has ended may still write to it. */
  void* (*allocate_lendable)(hvd_world*, uint64_t bytes);
  int32_t (*lend)(hvd_world*, void*);
  int32_t (*take_back)(void*);
  /* Set the function that describes one blocked thread, given the number that was passed to `block`. `tell` writes
   * '1' if no other thread of the program could submit anything, '2' if there are other threads and the program
   * cannot tell whether they call the engine, else '0'. After this character it writes where the thread is, such as
   * "train.py:12", if that is known; for '2', then a line feed and the names of the other threads. Called, as
   * tell_stack's function is, on a separate thread once the thread has waited for a while. Call before connect. */
  void (*tell_block)(hvd_world*, uint64_t (*tell)(void* context, uint64_t thread, char* text, uint64_t capacity),
                     void* context);
  /* Declare that, until `unblock`, this thread only waits for this handle, without a time limit. The engine uses
   * this to detect ranks that wait for each other. Threads that may give up or do other work must not call it. */
  void (*block)(hvd_world*, int64_t handle, uint64_t thread);
  void (*unblock)(hvd_world*, uint64_t thread);
  /* Let an external library move tensors wherever it supports the operation. Call before connect, on all ranks or
   * none. The client takes jobs on one thread and starts them in the order in which they arrive, without waiting for
   * earlier jobs (other ranks may see jobs of other groups in another order), and reports when each is done. */
  void (*use_jobs)(hvd_world*);
  /* Return HVD_OK and a job, HVD_IN_PROGRESS if none has arrived within the time, or HVD_FAILED when no more will
   * arrive. Memory that a job points to stays valid until finish_job, even if that is never called. */
  int32_t (*next_job)(hvd_world*, uint32_t timeout_us, hvd_job*, hvd_status*);
  /* Report the end of a job. `error` is NULL on success, else the text with which the world ends. */
  void (*finish_job)(hvd_world*, int64_t id, const char* error);
  /* Add an event of the program to the timeline, if one is being written. Times are of the steady (monotonic) clock. */
  void (*show)(hvd_world*, const char* name, int64_t began_ns, int64_t ended_ns);
  /* Use values that an autotuner found in an earlier world instead of tuning again. Call before connect, with equal
   * values on all ranks. */
  void (*use_tuning)(hvd_world*, uint64_t fusion_threshold, uint64_t cycle_time_us, uint64_t chunk_bytes);
  /* Make later work on a stream of the device wait for all operations that are done; the caller does not wait. Fails
   * once the world has ended: results on the device may then be invalid, also those of operations that were done
   * before. */
  int32_t (*let_wait)(hvd_world*, int32_t device, uint64_t stream, hvd_status*);
  /* output_rows returns the rows of an output that the engine allocated on a device, or -1. copy_output puts a copy
   * of the output to memory of the caller on the stream; afterwards the engine reuses its own memory. The handle
   * must be finished. */
  int64_t (*output_rows)(hvd_world*, int64_t handle, int32_t index);
  int32_t (*copy_output)(hvd_world*, int64_t handle, int32_t index, void* to, uint64_t stream, hvd_status*);
  /* Return the stream for HVD_PROMPT, which stays valid until the process ends; 0 if such operations are always
   * negotiated; -1 if that is not known yet, which is so until the first operation on a GPU is done. After that
   * operation the answer is equal on all ranks. */
  int64_t (*prompt_stream)(hvd_world*, int32_t device, int32_t kind, int32_t reduce_op, int32_t dtype, hvd_status*);
  /* Allocate uninitialised memory on a device. If all members of the set have a tensor at equal offsets of such
   * memory, an in-place allreduce works on it without copies. `address` receives the memory's address. The returned
   * object is for free_region; until then the memory stays valid, even after the world ends. NULL with HVD_OK: the
   * members do not share the device, or it is not known yet, because their first operations on the device find out. */
  void* (*allocate_region)(hvd_world*, int32_t process_set, int32_t device, uint64_t bytes, uint64_t* address,
                           hvd_status*);
  void (*free_region)(void*);
  /* Close the world as `close` does, within a time limit. Returns HVD_IN_PROGRESS if devices have not finished after
   * timeout_ms; the world then goes on. With 0, abandons unfinished device work at once, also that of a concurrent
   * `close`. */
  int32_t (*leave)(hvd_world*, int32_t timeout_ms);
  /* Return 1 if members of a process set share GPUs, 0 if not, -1 if it is not known because they have had no
   * tensors on GPUs yet or the set has one member. */
  int32_t (*shares_gpus)(hvd_world*, int32_t process_set);
  /* End the world because this rank's program has failed: every pending and later operation fails with this text on
   * all ranks, which report this rank as the cause. Unfinished device work is abandoned. Returns 1 if the world ends
   * for this reason, 0 if it had ended before or another thread is ending it. */
  int32_t (*fail)(hvd_world*, const char* why);
  /* Codecs, which need no world. */
  const hvd_codecs* codecs;
} hvd_api;

/* Return the table of functions, or NULL if this library does not support `version`. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const hvd_api* hvd_get_api(uint32_t version);

#ifdef __cplusplus
}
#endif
#endif /* HVD_ENGINE_H_ */
