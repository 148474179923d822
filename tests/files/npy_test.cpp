#include "files/npy.h"

#include <random>

#include <gtest/gtest.h>

#include "base/error.h"

namespace metroplex::files::npy_test {
namespace {

Bytes to_bytes(const std::string& text) {
  auto owner = std::make_shared<const std::string>(text);
  return {reinterpret_cast<const std::byte*>(owner->data()), owner->size(), owner};
}

TEST(Npy, WritesTheHeaderThatNumpyWrites) {
  const std::string header = npy_header("<i4", {8});
  const std::string text = "{'descr': '<i4', 'fortran_order': False, 'shape': (8,), }";
  ASSERT_EQ(header.size(), 128u);
  EXPECT_EQ(header.substr(0, 10), std::string("\x93NUMPY\x01\x00v\x00", 10));
  EXPECT_EQ(header.substr(10, text.size()), text);
  EXPECT_EQ(header.substr(10 + text.size()), std::string(128 - 10 - text.size() - 1, ' ') + "\n");
}

TEST(Npy, ReadsBackOneAndTwoDimensions) {
  const std::vector<int64_t> values{1, -2, 3, 4, 5, 6};
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{6}, {3, 2}}) {
    const NpyArray array = parse_npy(to_bytes(npy_text<int64_t>(values, shape)), "a.npy");
    EXPECT_EQ(array.shape, shape);
    const auto got = array.as<int64_t>();
    EXPECT_EQ(std::vector<int64_t>(got.begin(), got.end()), values);
    EXPECT_THROW(array.as<int32_t>(), base::Error);
  }
}

TEST(Npy, ReadsAnEmptyArray) { EXPECT_EQ(parse_npy(to_bytes(npy_text<uint32_t>({}, {0})), "a.npy").size(), 0); }

// Writers may pad the header with more spaces than needed; its length then takes both bytes.
TEST(Npy, ReadsALongHeader) {
  std::string text = npy_text<int32_t>(std::vector<int32_t>{7}, {1});
  ASSERT_EQ(text.size(), 128u + 4);
  text.insert(127, 192, ' ');
  text[8] = static_cast<char>((118 + 192) % 256), text[9] = static_cast<char>((118 + 192) / 256);
  const NpyArray array = parse_npy(to_bytes(text), "a.npy");
  EXPECT_EQ(array.shape, (std::vector<int64_t>{1}));
  EXPECT_EQ(array.as<int32_t>()[0], 7);
}

TEST(Npy, RefusesWhatIsCutOrOfAnotherForm) {
  const std::vector<int32_t> values{1, 2, 3};
  const std::string good = npy_text<int32_t>(values, {3});
  for (size_t length = 0; length < good.size(); ++length)
    EXPECT_THROW(parse_npy(to_bytes(good.substr(0, length)), "a.npy"), base::Error) << length;
  for (const char* type : {">i4", "<f4", "|O", "<i3", "i4", "<i 4"})
    EXPECT_THROW(parse_npy(to_bytes(npy_header(type, {0})), "a.npy"), base::Error) << type;
}

TEST(Npy, SurvivesAlteredFiles) {
  const std::vector<int16_t> values{1, 2, 3, 4};
  const std::string good = npy_text<int16_t>(values, {2, 2});
  std::mt19937 random(3);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = good;
    for (uint32_t change = 0; change <= random() % 3; ++change) text[random() % 90] = static_cast<char>(random());
    try {
      const NpyArray array = parse_npy(to_bytes(text), "a.npy");
      EXPECT_EQ(static_cast<size_t>(array.header_bytes) +
                    static_cast<size_t>(array.size()) * static_cast<size_t>(array.type[2] - '0'),
                text.size());
    } catch (const base::Error&) { ++refused; }
  }
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace metroplex::files::npy_test
