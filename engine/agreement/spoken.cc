// SPDX-License-Identifier: Apache-2.0
#include "agreement/spoken.h"

#include <algorithm>
#include <cctype>

#include "base/rank_list.h"

namespace hvd {
namespace {

constexpr size_t kMostOfName = 200;
constexpr std::string_view kUnnamed = "noname.";
constexpr std::string_view kOptimizer = "DistributedOptimizer.";  // prefix of the exchange of PyTorch's optimizer
constexpr std::string_view kIdentity = " parameters, ";

bool StartsWith(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

std::string InQuotes(std::string_view name) { return "'" + std::string(name.substr(0, kMostOfName)) + "'"; }

bool IsNumber(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

std::string Lowered(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Return the ranks, which follow the sender's arena offset in `splits`.
std::string RanksToAdd(const std::vector<int64_t>& splits) {
  std::string text;
  for (size_t i = 1; i < splits.size(); ++i) text += (i > 1 ? ", " : "") + std::to_string(splits[i]);
  return text;
}

// Return the text for an optimizer's exchange. Until ranks have agreed on names, and where optimizers share a name, the
// name ends with what identifies the optimizer: "layer.weight (4 parameters, 1a2b3c4d.0)".
std::string OfOptimizer(std::string_view name) {
  name.remove_prefix(kOptimizer.size());
  const size_t end = name.rfind(kIdentity);
  const size_t start = end == name.npos ? end : name.rfind(" (", end);
  const std::string identity(start == name.npos ? "" : name.substr(start));
  return "backward() or step() of the optimizer whose first parameter is " + InQuotes(name.substr(0, start)) + identity;
}

// Return the user's call from an engine name, which consists of the operation, a dot and the name that the user passed.
std::string Called(OpKind kind, std::string_view name) {
  std::string operation = Lowered(NameOf(kind));
  const size_t dot = name.find('.');
  const std::string_view first = name.substr(0, dot);
  const bool told = dot != name.npos && (first == operation || first == "grouped_" + operation);
  if (!told) return operation + " " + InQuotes(name);
  const std::string_view rest = name.substr(dot + 1);
  if (StartsWith(rest, kUnnamed) && IsNumber(rest.substr(kUnnamed.size()))) {
    return std::string(first) + " number " + std::string(rest.substr(kUnnamed.size())) + " without a name";
  }
  return std::string(first) + " " + InQuotes(rest);
}

}  // namespace

std::string Spoken(const Request& request) {
  if (StartsWith(request.name, kOptimizer)) return OfOptimizer(request.name);
  switch (request.kind) {
    case OpKind::kBarrier:
      return "hvd.barrier()";
    case OpKind::kJoin:
      return "hvd.join()";
    case OpKind::kAddProcessSet:
      return "hvd.add_process_set([" + RanksToAdd(request.splits) + "])";
    case OpKind::kRemoveProcessSet:
      return "hvd.remove_process_set() of process set " + std::to_string(request.splits.at(0));
    default:
      break;
  }
  if (request.group.empty()) return Called(request.kind, request.name);
  return Called(request.kind, request.group) + " of " + std::to_string(request.group_size) + " tensor" +
         (request.group_size == 1 ? "" : "s");
}

std::string SpokenCall(const Request& request) {
  if (request.kind == OpKind::kBarrier || request.kind == OpKind::kJoin) return Spoken(request);
  return SpokenName(request.name);
}

std::string SpokenName(std::string_view name) {
  return StartsWith(name, kOptimizer) ? OfOptimizer(name) : InQuotes(name);
}

std::string FinishedEarly(int finished, const std::vector<int>& callers, const std::string& call) {
  return "Horovod has been shut down. Rank " + std::to_string(finished) + " finished while " + NameRanks(callers) +
         " still call" + (callers.size() > 1 ? " " : "s ") + call +
         ". Let all ranks make this call, outside of conditions such as `if hvd.rank() == 0`; if ranks only have "
         "different numbers of batches, use drop_last=True or hvd.join(). If rank " +
         std::to_string(finished) + " failed instead, its own error says why.";
}

}  // namespace hvd
