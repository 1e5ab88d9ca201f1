// SPDX-License-Identifier: Apache-2.0
// Identity and settings of this rank. They are filled from the C structs and constant afterwards.
#pragma once

#include <hvd/settings.h>

#include <cstdint>
#include <string>

namespace hvd {

struct Identity {
  int rank = 0, size = 1;
  std::string host;
  std::string listen_address = "127.0.0.1";
  std::string world_id;
  uint32_t generation = 0;
  std::string secret;
};

// Bits for values that the user chose, so that the autotuner does not change them.
enum AutotuneFixed : uint32_t { kFixedFusion = 1, kFixedCycle = 2, kFixedChunk = 4 };

template <typename Type>
struct Kept {
  using As = Type;
};
template <>
struct Kept<const char*> {
  using As = std::string;
};

struct Settings {
#define HVD_FIELD(type, name, value) Kept<type>::As name = value;
  HVD_SETTINGS(HVD_FIELD)
#undef HVD_FIELD
};

struct Peer {
  int rank = -1;
  std::string host;
  std::string address;
  int port = 0;
  std::string local_socket;
  // Identifies the physical machine: hosts that are its containers have equal values. Empty if it is unknown.
  std::string machine = {};
};

}  // namespace hvd
