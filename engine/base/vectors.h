// SPDX-License-Identifier: Apache-2.0
// Vector types of the compiler, for code that is written once and compiled for each instruction set.
#pragma once

#include <cstring>

#include "base/half.h"

namespace hvd {

template <class Lane, int kBytes>
struct VecOf {
  typedef Lane type __attribute__((vector_size(kBytes)));
};
template <class Lane, int kBytes>
using Vec = typename VecOf<Lane, kBytes>::type;

template <class Lane, int kBytes>
HVD_INLINE Vec<Lane, kBytes> LoadVec(const void* from) {
  Vec<Lane, kBytes> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

}  // namespace hvd
