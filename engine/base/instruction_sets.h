// SPDX-License-Identifier: Apache-2.0
// Instruction sets of this processor, for code that is compiled for several of them and chosen at run time.
#pragma once

namespace hvd {

#if defined(__x86_64__)
// The compiler's builtin also checks that the operating system saves the wide registers; otherwise they are unusable.
inline bool HasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }
inline bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

}  // namespace hvd
