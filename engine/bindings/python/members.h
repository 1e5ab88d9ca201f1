// SPDX-License-Identifier: Apache-2.0
// A process set for native calls: everything that an operation needs to know about it, resolved in advance.
#pragma once

#include <hvd/engine.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hvd_python {

// Numbers operations without a name; ranks match them by their order. All methods need the GIL.
class Numbering {
 public:
  std::string Next(std::string_view operation) { return std::string(operation) + infix_ + std::to_string(++last_); }
  // Number from 1 again under a new prefix, because ranks that joined early have used fewer numbers than the others.
  void Restart() {
    infix_ = ".noname.join" + std::to_string(++restarts_) + ".";
    last_ = 0;
  }

 private:
  std::string infix_ = ".noname.";
  int64_t last_ = 0;
  int64_t restarts_ = 0;
};

struct Member {
  nanobind::object owner;  // Python's World object
  hvd_world* world;
  int32_t set_id;
  int index;  // index of this rank in `ranks`
  std::vector<int64_t> ranks;
  nanobind::object numbering;  // keeps `numbers` alive
  Numbering* numbers;
};

void BindMembers(nanobind::module_& module);

}  // namespace hvd_python
