#include "device/turns.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace metroplex::device::turns_test {
namespace {

TEST(Turns, AlternateAtEveryYield) {
  Turns turns;
  for (int repetition = 0; repetition < 3; ++repetition) {
    std::string order;
    const auto piece = [&](char name, int parts) {
      return [&order, name, parts] {
        for (int part = 0; part < parts; ++part) {
          order += name;
          yield_turn();
        }
      };
    };
    turns.run(piece('a', 2), piece('b', 4));
    EXPECT_EQ(order, "ababbb");
    order.clear();
    turns.run(piece('a', 3), piece('b', 0));
    EXPECT_EQ(order, "aaa");
    order.clear();
    turns.run(piece('a', 0), piece('b', 2));
    EXPECT_EQ(order, "bb");
  }
  yield_turn();  // outside of run() it has no effect
}

TEST(Turns, SwitchTheThreadLocalStateOfLibtorch) {
  Turns turns;
  std::string modes;
  const auto note = [&] { modes += at::GradMode::is_enabled() ? '1' : '0'; };
  turns.run(
      [&] {
        const at::NoGradGuard no_grad;
        yield_turn();
        note();
        yield_turn();
        note();
      },
      [&] {
        note();
        yield_turn();
        EXPECT_TRUE((at::ones({2}).requires_grad_() * 2).requires_grad());
        note();
      });
  EXPECT_EQ(modes, "1010");
  EXPECT_TRUE(at::GradMode::is_enabled());
}

struct Counted {
  explicit Counted(int& number) : number(number) { ++number; }
  ~Counted() { --number; }
  int& number;
};

TEST(Turns, AFailureUnwindsBothPieces) {
  Turns turns;
  for (const int failing : {0, 1}) {
    for (const bool at_once : {false, true}) {
      int alive = 0, ended = 0;
      const auto piece = [&](int number) {
        return [&alive, &ended, failing, at_once, number] {
          const Counted counted(alive);
          if (number == failing && at_once) throw std::runtime_error("of " + std::to_string(number));
          yield_turn();
          if (number == failing) throw std::runtime_error("of " + std::to_string(number));
          yield_turn();
          ++ended;
        };
      };
      try {
        turns.run(piece(0), piece(1));
        FAIL() << "no exception of piece " << failing;
      } catch (const std::runtime_error& error) { EXPECT_EQ(error.what(), "of " + std::to_string(failing)); }
      EXPECT_EQ(alive, 0);
      EXPECT_EQ(ended, 0);
    }
  }
  int runs = 0;  // the same object runs further work
  turns.run([&] { ++runs; }, [&] { ++runs; });
  EXPECT_EQ(runs, 2);
}

TEST(Turns, TheSecondPieceHasADeepStack) {
  const std::function<int(int)> depth = [&](int left) -> int {
    char frame[512] = {};
    frame[left % 512] = 1;
    return left == 0 ? frame[0] : depth(left - 1) + frame[left % 512];
  };
  int reached = 0;
  Turns().run([] {}, [&] { reached = depth(5000); });
  EXPECT_EQ(reached, 5001);
}

}  // namespace
}  // namespace metroplex::device::turns_test
