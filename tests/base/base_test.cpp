#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "base/thread_pool.h"
#include "base/utf8.h"

namespace metroplex::base::base_test {
namespace {

TEST(Utf8, EscapesWhatControlsATerminal) {
  EXPECT_EQ(escape_controls("plain\ttext\n\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "plain\ttext\n\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(escape_controls(std::string_view("\x1b[2J\r\x07\0\x7f", 8)), "\\u001b[2J\\u000d\\u0007\\u0000\\u007f");
  EXPECT_EQ(escape_controls("\xc2\x80\xc2\x9b\xc2\xa0"), "\\u0080\\u009b\xc2\xa0");  // U+0080, CSI, no-break space
  EXPECT_EQ(escape_controls("\xe2\x80\xaa\xe2\x80\xae\xe2\x81\xa6\xe2\x81\xa9"), "\\u202a\\u202e\\u2066\\u2069");
  EXPECT_EQ(escape_controls("\xe2\x80\xa8\xe2\x80\x8f\xd8\x9c\xef\xbb\xbf\xe2\x80\x8b"),
            "\\u2028\\u200f\\u061c\\ufeff\\u200b");
  EXPECT_EQ(escape_controls("\xf3\xa0\x81\x81"), "\\udb40\\udc41");  // tag A, U+E0041
  const std::string shown =
      "\xe2\x80\x8c\xe2\x80\x8d\xe2\x80\xaf\xe2\x81\x9f\xe2\x81\xb0\xd8\x9b\xef\xbb\xbe\xf3\xa0\x82\x80";
  EXPECT_EQ(escape_controls(shown), shown);  // U+200C and U+200D join letters and emoji; neighbors of the others
  EXPECT_EQ(escape_controls("\xff\x9b|\xe2\x80|\xed\xa0\x80|\xc0\x80"),
            "\\xff\\x9b|\\xe2\\x80|\\xed\\xa0\\x80|\\xc0\\x80");
}

TEST(Utf8, FindsTheBeginningOfACodePoint) {
  const std::string text = "a\xf0\x9f\x98\x80";
  const size_t incomplete[] = {0, 0, 1, 2, 3, 0};
  for (size_t size = 0; size <= text.size(); ++size)
    EXPECT_EQ(incomplete_utf8_suffix(text.substr(0, size)), incomplete[size]) << size;
  for (const char* bad : {"\xff", "\x80\x80\x80", "\xed\xa0", "\xc0", "\xf8\x88"})
    EXPECT_EQ(incomplete_utf8_suffix(bad), 0u);
}

TEST(Error, NamesTheRoomAndBothValues) {
  try {
    MPX_CHECK(2 + 2 == 5, "topology", 48, " ranks are not a multiple of ", 32);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[topology] 48 ranks are not a multiple of 32");
    EXPECT_EQ(error.room(), "topology");
  }
}

TEST(Error, HasAMessageWithoutTheRoomForTextsThatNameOne) {
  EXPECT_EQ(message_of(Error("files", "'x' is short")), "'x' is short");
  EXPECT_EQ(message_of(std::runtime_error("[files] as it is")), "[files] as it is");
}

TEST(Error, SuggestsTheNearestNameAndNothingFarAway) {
  const std::vector<std::string> names{"hidden_size", "num_layers", "seq_length"};
  EXPECT_EQ(nearest_name("hiden_size", names), "hidden_size");
  EXPECT_EQ(nearest_name("zzzzzzzzzzzz", names), "");
}

// The known-answer vectors that Random123 ships (kat_vectors, philox4x32 10).
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(philox4x32(0, 0, 0), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32(~0ull, ~0ull, ~0ull), (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, NormalsHaveUnitVariance) {
  double sum = 0, squares = 0;
  const int n = 20000;
  for (int i = 0; i < n; ++i) {
    for (const double x : normal_pair(philox4x32(7, i, 0))) {
      sum += x;
      squares += x * x;
    }
  }
  EXPECT_NEAR(sum / (2 * n), 0.0, 5 / std::sqrt(2.0 * n));  // 5 standard errors
  EXPECT_NEAR(squares / (2 * n), 1.0, 5 * std::sqrt(2.0 / (2 * n)));
}

TEST(ThreadPool, RunsEveryPieceOnceAndHandsBackTheFirstFailure) {
  std::vector<std::atomic<int>> seen(100);
  parallel_for(100, 3, [&](int64_t i) { ++seen[i]; });
  for (const auto& count : seen) EXPECT_EQ(count.load(), 1);
  EXPECT_THROW(parallel_for(10, 2, [](int64_t i) { MPX_CHECK(i != 4, "base", "four"); }), Error);
}

TEST(ThreadPool, RunsTogetherWhatWaitsForTheOthers) {
  std::barrier all(5);
  std::atomic<int> sum{0};
  run_together(5, [&](int i) {
    sum += i;
    all.arrive_and_wait();
    EXPECT_EQ(sum.load(), 10);
  });
  run_together(0, [](int) { FAIL(); });
}

}  // namespace
}  // namespace metroplex::base::base_test
