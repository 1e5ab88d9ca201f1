// SPDX-License-Identifier: Apache-2.0
// Checks that all members submit the same collective: one table of checks in the order in which they run.
#include "agreement/validate.h"

#include <algorithm>
#include <charconv>

#include "agreement/spoken.h"

namespace hvd {
namespace {

bool HasScale(OpKind kind) { return kind == OpKind::kAllreduce || kind == OpKind::kReducescatter; }
bool IsAllreduce(OpKind kind) { return kind == OpKind::kAllreduce; }
bool IsBroadcast(OpKind kind) { return kind == OpKind::kBroadcast; }
bool IsProcessSet(OpKind kind) { return kind == OpKind::kAddProcessSet || kind == OpKind::kRemoveProcessSet; }
bool Always(OpKind) { return true; }

bool MayDifferInRows(OpKind kind) { return kind == OpKind::kAllgather || kind == OpKind::kAlltoall; }

bool SameDType(const Request& a, const Request& b) { return a.dtype == b.dtype || !MovesTensor(b.kind); }
bool SameKind(const Request& a, const Request& b) { return a.kind == b.kind; }
bool SameShape(const Request& a, const Request& b) {
  if (!MayDifferInRows(a.kind) || a.shape.empty() || b.shape.empty()) return a.shape == b.shape;
  return std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1, b.shape.end());
}
bool SameScale(const Request& a, const Request& b) {
  return SameFactor(a.prescale, b.prescale) && SameFactor(a.postscale, b.postscale);
}
bool SameOp(const Request& a, const Request& b) { return a.op == b.op; }
bool SameRoot(const Request& a, const Request& b) { return a.root == b.root; }
bool SameDevice(const Request& a, const Request& b) { return (a.device < 0) == (b.device < 0); }
bool SameGroup(const Request& a, const Request& b) { return a.group == b.group && a.group_size == b.group_size; }

// Return the splits to compare: those of kAddProcessSet start with the sender's arena offset, which may differ.
std::vector<int64_t> AgreedSplits(const Request& request) {
  const bool skip = request.kind == OpKind::kAddProcessSet && !request.splits.empty();
  return {request.splits.begin() + (skip ? 1 : 0), request.splits.end()};
}
bool SameProcessSet(const Request& a, const Request& b) { return AgreedSplits(a) == AgreedSplits(b); }

std::string List(const std::vector<int64_t>& values) {
  std::string text = "[";
  for (int64_t value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  return text + "]";
}

std::string Quoted(const std::string& name) { return "'" + name + "'"; }
std::string On(int rank) { return " on rank " + std::to_string(rank); }

std::string ShowDType(const Request& r) { return NameOf(r.dtype); }
std::string ShowKind(const Request& r) { return NameOf(r.kind); }
std::string ShowShape(const Request& r) { return List(r.shape); }
// Return the factor with enough digits to distinguish it from all others, so that different factors look different.
std::string ShowFactor(double factor) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, factor).ptr};
}
std::string ShowScale(const Request& r) {
  return "prescale " + ShowFactor(r.prescale) + " and postscale " + ShowFactor(r.postscale);
}
std::string ShowOp(const Request& r) { return NameOf(r.op); }
std::string ShowRoot(const Request& r) { return std::to_string(r.root); }
std::string ShowDevice(const Request& r) { return r.device < 0 ? "the CPU" : "a GPU"; }
std::string ShowProcessSet(const Request& r) {
  return (r.kind == OpKind::kAddProcessSet ? "ranks " : "id ") + List(AgreedSplits(r));
}
std::string ShowGroup(const Request& r) {
  return r.group.empty() ? "no group" : "group " + Quoted(r.group) + " of " + std::to_string(r.group_size);
}

struct Check {
  bool (*applies)(OpKind);
  bool (*agree)(const Request&, const Request&);
  const char* title;  // follows "Mismatched "; %s is the operation
  const char* verb;   // between the tensor's name and the result of `show`
  std::string (*show)(const Request&);
  const char* advice;
};

constexpr Check kChecks[] = {
    {MovesTensor, SameDType, "data types", "is", ShowDType, "Every rank must submit it with the same type."},
    {Always, SameKind, "operations", "is submitted to", ShowKind,
     "Every rank must run the same operation under one name."},
    {MovesTensor, SameShape, "%s tensor shapes", "has shape", ShowShape,
     "Every rank must submit the same shape (allgather and alltoall: except the first dimension)."},
    {HasScale, SameScale, "prescale and/or postscale factors", "has", ShowScale,
     "Every rank must pass the same factors."},
    {IsAllreduce, SameOp, "reduction operation", "is reduced by", ShowOp, "Every rank must pass the same op."},
    {IsBroadcast, SameRoot, "%s root ranks", "has root rank", ShowRoot, "Every rank must name the same root."},
    {MovesTensor, SameDevice, "%s CPU/GPU device selection", "is on", ShowDevice,
     "Every rank must submit it from the same kind of device."},
    {IsProcessSet, SameProcessSet, "process set", "has", ShowProcessSet,
     "Every rank of the job must add and remove the same process sets in the same order."},
};
constexpr Check kGroupCheck = {Always,  SameGroup, "groups",
                               "is in", ShowGroup, "Every rank must submit the same tensors as one group."};

std::string Title(const Check& check, OpKind kind) {
  std::string title = check.title;
  if (title.compare(0, 2, "%s") == 0) title.replace(0, 2, NameOf(kind));
  return title;
}

Status Run(const Check& check, const Reports& reports, const std::vector<int>& ranks) {
  const size_t first_member = reports.FirstMember();
  const Request& first = reports.Of(first_member);
  if (!check.applies(first.kind)) return Status::Ok();
  for (size_t member = first_member + 1; member < ranks.size(); ++member) {
    if (!reports.Has(member)) continue;
    const Request& other = reports.Of(member);
    if (&other == &first || check.agree(first, other)) continue;
    const char* what = IsProcessSet(first.kind) ? "" : "tensor ";
    return Status::Mismatch("Mismatched " + Title(check, first.kind) + ": " + what + Quoted(first.name) + " " +
                            check.verb + " " + check.show(first) + On(ranks[first_member]) + " but " +
                            check.show(other) + On(ranks[member]) + ". " + check.advice);
  }
  return Status::Ok();
}

Status CheckSplits(const Request& request, const std::vector<int>& ranks, int rank) {
  bool fits = request.splits.size() == ranks.size();
  int64_t left = request.shape[0];
  for (int64_t rows : request.splits) {
    fits = fits && rows >= 0 && rows <= left;
    left -= fits ? rows : 0;
  }
  if (fits) return Status::Ok();
  return Status::Mismatch("Mismatched ALLTOALL splits: tensor " + Quoted(request.name) + " has splits " +
                          List(request.splits) + On(rank) + " for shape " + List(request.shape) + " and " +
                          std::to_string(ranks.size()) +
                          " ranks. There must be one split for each rank, with a sum of at most the rows.");
}

// Check what each request must satisfy by itself, after all have agreed.
Status CheckAlone(const Request& request, const std::vector<int>& ranks, int rank) {
  const bool takes_rows = MayDifferInRows(request.kind) || request.kind == OpKind::kReducescatter;
  if (takes_rows && request.shape.empty()) {
    return Status::Mismatch(std::string(NameOf(request.kind)) + " cannot take a scalar: tensor " +
                            Quoted(request.name) + " has no first dimension" + On(rank) + ". Reshape it to [1].");
  }
  const bool adds = request.op == ReduceOp::kSum || request.op == ReduceOp::kAverage;
  if (request.kind == OpKind::kReducescatter && !adds) {
    return Status::Mismatch("REDUCESCATTER supports only Sum and Average: tensor " + Quoted(request.name) +
                            " is reduced by " + ShowOp(request) + On(rank) + ".");
  }
  if (request.kind == OpKind::kAlltoall) return CheckSplits(request, ranks, rank);
  const bool has_splits = request.splits.size() >= (request.kind == OpKind::kAddProcessSet ? 2u : 1u);
  if (IsProcessSet(request.kind) && !has_splits) {
    return Status::Mismatch("Mismatched process set: " + Quoted(request.name) + " names nothing" + On(rank) + ".");
  }
  return Status::Ok();
}

}  // namespace

Status Validate(const Reports& reports, const std::vector<int>& ranks) {
  for (const Check& check : kChecks) {
    if (Status status = Run(check, reports, ranks); !status.ok()) return status;
  }
  const Request* last = nullptr;
  for (size_t member = 0; member < ranks.size(); ++member) {
    if (!reports.Has(member) || &reports.Of(member) == last) continue;
    last = &reports.Of(member);
    if (Status status = CheckAlone(*last, ranks, ranks[member]); !status.ok()) return status;
  }
  return Status::Ok();
}

Status ValidateGroup(const Reports& reports, const std::vector<int>& ranks) { return Run(kGroupCheck, reports, ranks); }

std::vector<int64_t> SizesOf(const Reports& reports) {
  const OpKind kind = reports.First().kind;
  std::vector<int64_t> sizes;
  if (kind == OpKind::kAllgather) {
    sizes.reserve(reports.members());
    for (size_t member = 0; member < reports.members(); ++member) sizes.push_back(reports.Of(member).shape[0]);
  } else if (kind == OpKind::kAllreduce && reports.AllPlaced()) {
    for (size_t member = 0; member < reports.members(); ++member) sizes.push_back(reports.Of(member).place);
  } else if (kind == OpKind::kAlltoall) {
    int64_t largest = 0;
    for (const Request& request : reports.distinct()) {
      for (int64_t rows : request.splits) largest = std::max(largest, rows);
    }
    sizes.push_back(largest);
    // Include all splits, because members of a small set then need not exchange them in each alltoall, and on a device
    // they cannot.
    const bool all = reports.members() <= kFewMembers || reports.First().device >= 0;
    for (size_t member = 0; all && member < reports.members(); ++member) {
      const std::vector<int64_t>& splits = reports.Of(member).splits;
      sizes.insert(sizes.end(), splits.begin(), splits.end());
    }
  }
  return sizes;
}

Status NotWhileJoined(OpKind kind, const std::string& name, int joined_rank) {
  return Status::Mismatch(std::string(NameOf(kind)) + " of " + Quoted(name) + " is not supported while rank " +
                          std::to_string(joined_rank) +
                          " has joined. Until every rank has called join, only allreduce may go on.");
}

Status Departed(int rank, const std::vector<int>& callers, const std::string& call) {
  return Status::Failed(FinishedEarly(rank, callers, call));
}

Status UnknownSlot(int rank, uint32_t slot) {
  return Status::Failed("Protocol error: rank " + std::to_string(rank) + " reported a tensor by cache slot " +
                        std::to_string(slot) + ", which no tensor has.");
}

Status UnknownProcessSet(const std::string& name, int64_t id) {
  return Status::Mismatch("Mismatched process set: " + Quoted(name) + " removes process set " + std::to_string(id) +
                          ", which does not exist.");
}

}  // namespace hvd
