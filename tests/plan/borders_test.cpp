#include "plan/borders.h"

#include <gtest/gtest.h>

#include <string>

namespace metroplex::test::borders_test {
namespace {

using plan::Action;
using plan::ActionKind;

struct Call {
  bool done = false;
  int waits = 0;
  void wait() {
    done = true;
    ++waits;
  }
};
using Book = plan::Borders<std::string, Call>;

TEST(Borders, AnInputIsWaitedForWhenItIsUsed) {
  Book book;
  const Action receive{ActionKind::recv_forward, 3, 1, 0, -1};
  book.slot(receive) = "input";
  const auto call = std::make_shared<Call>();
  book.issued(receive, call);
  EXPECT_EQ(call->waits, 0);
  EXPECT_EQ(book.count(), 1u);
  EXPECT_EQ(book.take_input({3, 1}), "input");
  EXPECT_EQ(call->waits, 1);
  EXPECT_EQ(book.count(), 0u);
}

TEST(Borders, OfWhatIsSentTheTwoNewestMayBeUnderWay) {
  Book book;
  std::vector<std::shared_ptr<Call>> calls;
  for (int m = 0; m < 3; ++m) {
    book.leave_gradient(m, {1, 0}, {0, 0}, "gradient");
    calls.push_back(std::make_shared<Call>());
    book.issued({ActionKind::send_backward, m, 0, 0, -1}, calls.back());
  }
  EXPECT_TRUE(calls[0]->done);
  EXPECT_FALSE(calls[1]->done);
  EXPECT_EQ(book.count(), 2u);
  book.finish();
  EXPECT_TRUE(calls[2]->done);
  EXPECT_EQ(book.count(), 0u);
}

// One batched call sends an output and receives a gradient: using the gradient implies that the output was sent.
TEST(Borders, WhatWentWithTheSameCallIsGoneWithIt) {
  Book book;
  const auto call = std::make_shared<Call>();
  const Action send{ActionKind::send_forward, 1, 0, 1, 0}, receive{ActionKind::recv_backward, 0, 0, 1, 0};
  book.leave_output(1, {0, 0}, {1, 0}, "output");
  book.slot(receive) = "gradient";
  book.issued(send, call);
  book.issued(receive, call);
  book.release({1, 0});
  EXPECT_EQ(book.count(), 2u);
  EXPECT_EQ(book.take_gradient({0, 0}), "gradient");
  EXPECT_EQ(book.count(), 0u);
}

// The gradient of an output arrives after the output was sent: the send is complete and holds nothing.
TEST(Borders, AnOutputWhoseGradientHasComeHasBeenSent) {
  Book book;
  std::vector<std::shared_ptr<Call>> sends;
  for (int m = 0; m < 2; ++m) {
    book.leave_output(m, {0, 0}, {1, 0}, "output");
    sends.push_back(std::make_shared<Call>());
    book.issued({ActionKind::send_forward, m, 0, 1, -1}, sends.back());
    book.release({m, 0});
  }
  const Action receive{ActionKind::recv_backward, 1, 0, 1, -1};
  book.slot(receive) = "gradient";
  book.issued(receive, std::make_shared<Call>());
  EXPECT_EQ(book.count(), 3u);
  EXPECT_EQ(book.take_gradient({1, 0}), "gradient");
  EXPECT_TRUE(sends[1]->done);
  EXPECT_FALSE(sends[0]->done);
  EXPECT_EQ(book.count(), 1u);
}

}  // namespace
}  // namespace metroplex::test::borders_test
