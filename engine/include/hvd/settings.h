/* SPDX-License-Identifier: Apache-2.0
 * The list of all engine settings with their defaults: FIELD(type, name, default). The struct hvd_settings, the
 * engine's own Settings and the Python module's arguments are generated from it; defaults are defined nowhere else. New
 * fields go to the end, so that the structs of older clients stay valid. Strings are null-terminated. */
#ifndef HVD_SETTINGS_H_
#define HVD_SETTINGS_H_

/* clang-format off */
#define HVD_SETTINGS(FIELD)                                                                                                \
  FIELD(uint64_t, fusion_threshold, 128 << 20)     /* bytes of a fused batch at most */                                    \
  FIELD(uint64_t, cycle_time_us, 1000)             /* longest time to gather asynchronous work */                          \
  FIELD(uint64_t, cache_capacity, 1 << 16)         /* largest number of tensors in the response cache */                   \
  FIELD(uint64_t, slot_bytes, 256 << 10)           /* staging slot: the chunk that a collective moves at a time */         \
  FIELD(uint64_t, slots, 4)                        /* slots in each lane */                                                \
  FIELD(uint64_t, small_bytes, 32 << 10)           /* each rank reduces all itself if peers send at most this */           \
  FIELD(uint64_t, tcp_streams, 1)                  /* sockets for each lane and peer */                                    \
  FIELD(uint64_t, spin_us, 100)                    /* how long a waiting caller spins; 0 where ranks share cores */        \
  FIELD(int32_t, shared_memory, 1)                 /* 0: sockets only */                                                   \
  FIELD(int32_t, hierarchical_allreduce, -1)       /* -1 automatic, 0 never, 1 wherever possible */                        \
  FIELD(int32_t, deterministic, 0)                 /* 1: results do not depend on which hosts the ranks are on */          \
  FIELD(int32_t, disable_group_fusion, 0)                                                                                  \
  FIELD(uint64_t, peer_timeout_ms, 10000)          /* a silent peer is lost after this time; 0 = never */                  \
  FIELD(uint64_t, stall_warning_ms, 60000)         /* warn if a tensor waits this long; 0: no stall check at all */        \
  FIELD(uint64_t, stall_shutdown_ms, 0)            /* end the job if a tensor waits this long; 0 = never */                \
  FIELD(int32_t, autotune, 0)                      /* 1: rank 0 tunes fusion_threshold, cycle_time_us and slot_bytes */    \
  FIELD(uint32_t, autotune_fixed, 0)               /* bits of values not to tune: 1 fusion, 2 cycle time, 4 slots */       \
  FIELD(uint32_t, autotune_warmup_samples, 3)                                                                              \
  FIELD(uint32_t, autotune_steps_per_sample, 10)                                                                           \
  FIELD(uint32_t, autotune_max_samples, 20)                                                                                \
  FIELD(uint32_t, autotune_noise_permille, 800)                                                                            \
  FIELD(const char*, autotune_log, "")             /* CSV file that rank 0 writes; empty: none */                          \
  FIELD(uint64_t, express_bytes, 4 << 10)          /* base size limit of the fast path without the leader; 0 = off */      \
  FIELD(uint64_t, single_copy_bytes, 16 << 10)     /* size from which peers may write into outputs; 0 = never */           \
  FIELD(int32_t, log_level, 3)                     /* 0 trace, 1 debug, 2 info, 3 warning, 4 error, 5 fatal */             \
  FIELD(int32_t, log_hide_time, 0)                 /* 1: log lines without the time */                                     \
  FIELD(int32_t, engine_core, -1)                  /* the only core that the engine thread runs on; -1: any */             \
  FIELD(uint64_t, deadlock_ms, 2000)               /* report ranks that wait for each other this long; 0 = never */        \
  FIELD(int32_t, hierarchical_allgather, -1)       /* kinds that only move bytes: -1 automatic, 0 never, 1 any size */     \
  FIELD(int32_t, host_algorithm, 0)                /* between hosts: 0 automatic, 1 direct, 2 ring, 3 doubling */          \
  FIELD(int32_t, gpu_transport, 0)                 /* on GPUs: 0 automatic, 1 ipc, 2 staged, 3 nccl, 4 not nccl */         \
  FIELD(uint64_t, gpu_slot_bytes, 64 << 20)        /* slot of a set's memory on the device, which has `slots` of them */   \
  FIELD(uint64_t, gpu_staged_bytes, 1 << 20)       /* smaller operations go through host memory */                         \
  FIELD(const char*, nccl_library, "")             /* file of NCCL; empty: the loaded one, or the system's */              \
  FIELD(const char*, nccl_bundled, "")             /* NCCL to try after a named or loaded one, before the system's */      \
  FIELD(const char*, nccl_host_id, "")             /* value of NCCL_HOSTID, which NCCL reads itself */                     \
  FIELD(int32_t, launches_by_calls, 0)             /* 1: NCCL launches in call order over all such worlds of a process */  \
  FIELD(uint64_t, nccl_fused_bytes, 16 << 20)      /* tensors smaller than this on average are packed for NCCL */
/* clang-format on */

#endif /* HVD_SETTINGS_H_ */
