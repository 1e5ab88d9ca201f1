/* SPDX-License-Identifier: Apache-2.0
 * The one list of what the engine can be told and of what it does otherwise: FIELD(type, name, default). The struct
 * hvd_settings, the engine's own Settings and what the Python module accepts are made from it, and nowhere else is
 * there a default. A new field comes last, so that older clients' structs stay what they are. Texts end with a null
 * byte. */
#ifndef HVD_SETTINGS_H_
#define HVD_SETTINGS_H_

/* clang-format off */
#define HVD_SETTINGS(FIELD)                                                                                           \
  FIELD(uint64_t, fusion_threshold, 128 << 20)     /* bytes */                                                        \
  FIELD(uint64_t, cycle_time_us, 1000)             /* upper bound on gathering asynchronous work */                   \
  FIELD(uint64_t, cache_capacity, 1 << 16)         /* a bound: the response cache grows with the number of tensors */ \
  FIELD(uint64_t, slot_bytes, 256 << 10)           /* staging slot: the chunk that a collective moves at a time */    \
  FIELD(uint64_t, slots, 4)                        /* slots in each lane */                                           \
  FIELD(uint64_t, small_bytes, 32 << 10)           /* every rank reduces all while others' messages are no longer */  \
  FIELD(uint64_t, tcp_streams, 1)                  /* sockets for each lane and peer */                               \
  FIELD(uint64_t, spin_us, 100)                    /* how long a waiting caller spins; 0 where ranks share cores */   \
  FIELD(int32_t, shared_memory, 1)                 /* 0: sockets only */                                              \
  FIELD(int32_t, hierarchical_allreduce, -1)       /* -1 decide, 0 never, 1 wherever possible */                      \
  FIELD(int32_t, deterministic, 0)                 /* bits independent of the host layout */                          \
  FIELD(int32_t, disable_group_fusion, 0)                                                                             \
  FIELD(uint64_t, peer_timeout_ms, 10000)          /* a silent peer is declared dead after this; 0 = never */         \
  FIELD(uint64_t, stall_warning_ms, 60000)         /* a tensor that waits longer for some ranks is reported */        \
  FIELD(uint64_t, stall_shutdown_ms, 0)            /* ... and ends the job; 0 = never, both of them */                \
  FIELD(int32_t, autotune, 0)                      /* rank 0 tunes fusion_threshold, cycle_time_us and slot_bytes */  \
  FIELD(uint32_t, autotune_fixed, 0)               /* ... but not these: 1 fusion, 2 cycle time, 4 slots */           \
  FIELD(uint32_t, autotune_warmup_samples, 3)                                                                         \
  FIELD(uint32_t, autotune_steps_per_sample, 10)                                                                      \
  FIELD(uint32_t, autotune_max_samples, 20)                                                                           \
  FIELD(uint32_t, autotune_noise_permille, 800)                                                                       \
  FIELD(const char*, autotune_log, "")             /* CSV file that rank 0 writes; empty: none */                     \
  FIELD(uint64_t, express_bytes, 4 << 10)          /* small collectives go to all at once, up to this; 0 never */     \
  FIELD(uint64_t, single_copy_bytes, 16 << 10)     /* outputs from this size on may be written by others; 0 = never */\
  FIELD(int32_t, log_level, 3)                     /* 0 trace, 1 debug, 2 info, 3 warning, 4 error, 5 fatal */        \
  FIELD(int32_t, log_hide_time, 0)                 /* 1: log lines without the time */                                \
  FIELD(int32_t, engine_core, -1)                  /* the only core that the engine thread runs on; -1: any */        \
  FIELD(uint64_t, deadlock_ms, 2000)               /* ranks that wait for each other this long are told; 0 = never */ \
  FIELD(int32_t, hierarchical_allgather, -1)       /* what only moves bytes: -1 decide, 0 never, 1 any size */             \
  FIELD(int32_t, host_algorithm, 0)                /* between hosts: 0 by the table, 1 direct, 2 ring, 3 doubling */       \
  FIELD(int32_t, gpu_transport, 0)                 /* tensors on GPUs: 0 decide, 1 ipc, 2 staged, 3 nccl, 4 not nccl */    \
  FIELD(uint64_t, gpu_slot_bytes, 64 << 20)        /* of a set's arena on the device, which has as many as a lane */       \
  FIELD(uint64_t, gpu_staged_bytes, 1 << 20)       /* less than this goes through host memory */                           \
  FIELD(const char*, nccl_library, "")             /* the file; empty: the one that is loaded, or that the system finds */ \
  FIELD(const char*, nccl_bundled, "")             /* a file for when none is named and none is loaded, before the system's */ \
  FIELD(const char*, nccl_host_id, "")             /* as NCCL_HOSTID says, which NCCL reads itself */                      \
  FIELD(int32_t, launches_by_calls, 0)             /* 1: NCCL launches in the order of calls, over all such worlds of a process */ \
  FIELD(uint64_t, nccl_fused_bytes, 16 << 20)      /* groups of smaller tensors, on average, go to NCCL in one buffer */
/* clang-format on */

#endif /* HVD_SETTINGS_H_ */
