// SPDX-License-Identifier: Apache-2.0
#include "agreement/express.h"

#include <algorithm>

namespace hvd {

const Express::Course* Express::Find(uint32_t slot) const {
  const auto found = courses_.find(slot);
  return found == courses_.end() ? nullptr : &found->second;
}

uint32_t Express::Round(uint32_t slot) const {
  const Course* course = Find(slot);
  return course ? course->round : 0;
}

bool Express::IsOver(uint32_t slot, uint32_t round) const {
  const Course* course = Find(slot);
  return !course || std::max(course->round, course->resume) > round;
}

bool Express::Add(uint32_t slot, uint32_t round, size_t member, uint64_t seen, const Piece& piece) {
  Course& course = courses_[slot];
  if (round < course.round) {
    if (piece.number && gone_) gone_(member, piece.number);
    return false;
  }
  course.used = true;
  course.parts.push_back(Part{round, member, seen, piece, {}});
  return true;
}

void Express::Keep(uint32_t slot, uint32_t round, size_t member) {
  const auto found = courses_.find(slot);
  if (found == courses_.end()) return;
  for (Part& part : found->second.parts) {
    if (part.round != round || part.member != member || part.piece.size == kInPlace) continue;
    part.kept.assign(reinterpret_cast<const char*>(part.piece.data), part.piece.size);
    part.piece.data = nullptr;
  }
}

bool Express::Complete(uint32_t slot, std::vector<Piece>* parts) const {
  const Course* course = Find(slot);
  if (!course || course->parts.size() < members_) return false;
  parts->assign(members_, Piece());
  size_t count = 0;
  for (const Part& part : course->parts) {
    if (part.round != course->round) continue;
    (*parts)[part.member] = PieceOf(part);
    ++count;
  }
  return count == members_;
}

bool Express::PartsOf(uint32_t slot, uint32_t round, const std::vector<int>& members, std::vector<Told>* parts) const {
  parts->clear();
  const Course* course = Find(slot);
  if (!course) return false;
  for (int member : members) {
    const auto theirs = [&](const Part& part) {
      return part.round == round && part.member == static_cast<size_t>(member);
    };
    const auto found = std::find_if(course->parts.begin(), course->parts.end(), theirs);
    if (found == course->parts.end()) return false;
    parts->push_back({found->member, found->seen, PieceOf(*found)});
  }
  return true;
}

Express::Piece Express::PieceOf(const Part& part) {
  Piece piece = part.piece;
  if (!piece.data) piece.data = reinterpret_cast<const std::byte*>(part.kept.data());
  return piece;
}

bool Express::Has(uint32_t slot, size_t member) const {
  const Course* course = Find(slot);
  return course && std::any_of(course->parts.begin(), course->parts.end(),
                               [&](const Part& part) { return part.member == member && part.round == course->round; });
}

void Express::Dismiss(const Part& part) const {
  if (part.piece.number && gone_) gone_(part.member, part.piece.number);
}

void Express::Advance(Course* course, uint32_t round) {
  course->round = std::max(round, course->resume);
  if (course->parts.empty()) return;
  auto over = [this, course](const Part& part) {
    if (part.round >= course->round) return false;
    Dismiss(part);
    return true;
  };
  course->parts.erase(std::remove_if(course->parts.begin(), course->parts.end(), over), course->parts.end());
}

void Express::Forget(uint32_t slot) {
  const auto found = courses_.find(slot);
  if (found == courses_.end()) return;
  for (const Part& part : found->second.parts) Dismiss(part);
  courses_.erase(found);
}

void Express::End(uint32_t slot) {
  Course& course = courses_[slot];
  Advance(&course, course.round + 1);
}

void Express::EndBy(uint32_t slot, uint32_t round) {
  Course& course = courses_[slot];
  course.resume = std::max(course.resume, round + 1);
  if (course.round >= round) Advance(&course, course.round);
}

void Express::Postpone(uint32_t slot, Report report) { courses_[slot].postponed.push_back(std::move(report)); }

std::vector<Express::Report> Express::TakeCurrent(uint32_t slot) {
  std::vector<Report> reports;
  const auto found = courses_.find(slot);
  if (found == courses_.end()) return reports;
  reports.swap(found->second.postponed);
  for (const Part& part : found->second.parts) {
    if (part.round == found->second.round) reports.push_back({part.member, part.seen, true, std::nullopt});
  }
  return reports;
}

void Express::Settle(uint32_t slot, uint32_t round) { courses_[slot].settled = round; }

bool Express::Settled(uint32_t slot, uint32_t round) const {
  const Course* course = Find(slot);
  return course && round < course->settled;
}

std::vector<std::pair<uint32_t, uint32_t>> Express::Rounds() const {
  std::vector<std::pair<uint32_t, uint32_t>> rounds;
  for (const auto& [slot, course] : courses_) {
    if (course.used) rounds.emplace_back(slot, course.round);
  }
  return rounds;
}

}  // namespace hvd
