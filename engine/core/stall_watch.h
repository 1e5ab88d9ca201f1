// SPDX-License-Identifier: Apache-2.0
// Warnings about tensors that some ranks have submitted and others have not. The leader finds them and sends the
// warning to all members; missing ranks answer with their stacks.
#pragma once

#include <string>
#include <string_view>

#include "core/services.h"
#include "core/set_registry.h"
#include "core/stack_teller.h"

namespace hvd {

// Owns the question to this rank's program where it is, and which set and tensor the answer is for.
class StallWatch {
 public:
  using Clock = StackTeller::Clock;

  // `sets` and `services` must outlive this object.
  StallWatch(const StackTeller& teller, const SetRegistry* sets, const Services* services)
      : teller_(teller), sets_(*sets), services_(*services) {}

  // Warn about stalled tensors of a set that this rank leads. Return why the world must end, or ok.
  Status Look(Membership& membership, Clock::time_point now);
  void OnNotice(Membership& membership, std::string_view whole, std::string_view body);
  void OnAnswer(Membership& membership, std::string_view whole, std::string_view body);

  // True while the program has not answered yet.
  bool asks() const { return teller_.asked(); }
  // Send the program's answer, if there is one, to the leader that asked.
  void ReadAnswer();

 private:
  void Handle(const Membership& membership, const control::StallNotice& notice);
  void Forward(Membership& membership, const control::StackAnswer& answer) const;
  void Show(const Membership& membership, const std::string& name, const std::string& text) const;

  StackTeller teller_;
  const SetRegistry& sets_;
  const Services& services_;
  int asking_set_ = -1;
  std::string tensor_;
};

}  // namespace hvd
