// A source of another format: one of our tensors is a concatenation of two transposed tensors.
#include "checkpoint/tensor_source.h"

#include <gtest/gtest.h>

#include <array>

#include "base/error.h"
#include "checkpoint/exchange.h"

namespace metroplex::checkpoint::tensor_source_test {
namespace {

// "qkv" [4, 3] out of query and key, [3, 2] each.
class Transposed final : public TensorSource {
 public:
  Transposed() : TensorSource("elsewhere") {
    add({"qkv", "weight", files::Dtype::kF32, {4, 3}});
    add({"bias", "weight", files::Dtype::kF32, {1}});
  }

 private:
  void read(size_t tensor, const Piece& region, void* data) override {
    if (tensor == 1) base::throw_error("checkpoint", "bias is damaged");
    for (int half = 0; half < 2; ++half) {
      std::array<float, 6> part{};
      for (size_t row = 0; row < 2; ++row) {
        for (size_t column = 0; column < 3; ++column) part[3 * row + column] = own_[half][2 * column + row];
      }
      copy_overlap(box_piece({2 * half, 0}, {2, 3}), part.data(), region, data, sizeof(float));
    }
  }

  const float own_[2][6] = {{0, 3, 1, 4, 2, 5}, {6, 9, 7, 10, 8, 11}};
};

TEST(TensorSource, AnyRegionComesOutOfJoinedAndTransposedPieces) {
  Transposed source;
  std::array<float, 6> middle{};
  source.fill({"qkv", "weight", {4, 3}, {1, 0}, {2, 3}, files::Dtype::kF32, middle.data()});
  EXPECT_EQ(middle, (std::array<float, 6>{3, 4, 5, 6, 7, 8}));
  std::array<float, 4> column{};
  source.fill({"qkv", "weight", {4, 3}, {0, 2}, {4, 1}, files::Dtype::kF32, column.data()});
  EXPECT_EQ(column, (std::array<float, 4>{2, 5, 8, 11}));
  std::array<float, 3> range{};
  source.fill({"qkv", "weight", {4, 3}, {0, 0}, {4, 3}, files::Dtype::kF32, range.data(), 4, 7});
  EXPECT_EQ(range, (std::array<float, 3>{4, 5, 6}));
}

TEST(TensorSource, WhatDoesNotFitIsRefusedBeforeItIsRead) {
  Transposed source;
  float value = 0;
  const auto complaint = [&](const std::string& name, int64_t rows, files::Dtype dtype) {
    try {
      source.fill({name, "weight", {rows}, {0}, {rows}, dtype, &value});
    } catch (const base::Error& error) { return std::string(error.what()); }
    return std::string("accepted");
  };
  EXPECT_NE(complaint("bios", 1, files::Dtype::kF32).find("nearest name is 'bias'"), std::string::npos);
  EXPECT_NE(complaint("bias", 2, files::Dtype::kF32).find("has shape [1], but"), std::string::npos);
  EXPECT_NE(complaint("bias", 1, files::Dtype::kF16).find("'elsewhere', tensor 'bias' (weight) has dtype F32"),
            std::string::npos);
  EXPECT_NE(complaint("bias", 1, files::Dtype::kF32).find("damaged"), std::string::npos);
}

TEST(TensorSource, WhatNobodyTookIsNamed) {
  Transposed source;
  Alone alone;
  std::array<float, 12> all{};
  source.fill({"qkv", "weight", {4, 3}, {0, 0}, {4, 3}, files::Dtype::kF32, all.data()});
  EXPECT_EQ(source.unread(alone), (std::vector<std::string>{"tensor 'bias' (weight)"}));
  source.mark_read("bias", "weight");
  EXPECT_TRUE(source.unread(alone).empty());
}

}  // namespace
}  // namespace metroplex::checkpoint::tensor_source_test
