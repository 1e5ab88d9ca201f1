// SPDX-License-Identifier: Apache-2.0
#include "transport/life_line.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

namespace {

using hvd::LifeLine;

struct Ends {
  LifeLine here, there;

  Ends() {
    int fds[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
    here = LifeLine(fds[0]);
    there = LifeLine(fds[1]);
  }
};

}  // namespace

TEST_CASE("life line: an end that was not meant, and one that was") {
  Ends killed, left;
  killed.here.Read();
  CHECK_FALSE(killed.here.ended());
  killed.there.Close();
  killed.here.Read();
  CHECK(killed.here.ended());
  CHECK_FALSE(killed.here.farewell());
  left.there.SayFarewell();
  left.here.Read();
  CHECK(left.here.farewell());
  CHECK_FALSE(left.here.ended());
  left.there.Close();
  left.here.Read();
  CHECK(left.here.ended());
}

TEST_CASE("life line: the first words count, and wait until somebody reads them") {
  Ends ends;
  ends.there.SayLastWords({2, hvd::NameLoss(2, "b", "its process ended")});
  ends.there.SayLastWords({1, "something else"});
  ends.there.SayFarewell();
  ends.there.Close();
  ends.here.Read();
  REQUIRE(ends.here.last_words());
  CHECK(ends.here.last_words()->lost_rank == 2);
  CHECK(ends.here.last_words()->why == "rank 2 is lost (on host 'b'): its process ended");
  CHECK(ends.here.farewell());
  CHECK(ends.here.ended());
}

TEST_CASE("life line: words that are too long are cut, and nonsense ends the line") {
  Ends ends;
  ends.there.SayLastWords({0, std::string(100000, 'x')});
  ends.here.Read();
  REQUIRE(ends.here.last_words());
  CHECK(ends.here.last_words()->why == std::string(2048, 'x'));
  const std::string nonsense(5000, '\xff');
  CHECK(send(ends.there.fd(), nonsense.data(), nonsense.size(), 0) == 5000);
  ends.here.Read();
  CHECK(ends.here.ended());
}
