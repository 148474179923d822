// Checks of fetch_rows and return_rows that every backend must pass, against plain loops over the rows of all
// members.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "comm/collectives.h"

namespace metroplex::test {

// owners [members * slots]: distinct rows of other members per member; `empty` in ten slots have no owner.
inline std::vector<int32_t> random_owners(int members, int64_t slots, int64_t home, unsigned empty,
                                          std::mt19937& draw) {
  std::vector<int32_t> owners;
  for (int member = 0; member < members; ++member) {
    std::vector<int32_t> foreign;
    for (int32_t row = 0; row < members * home; ++row) {
      if (row / home != member) foreign.push_back(row);
    }
    std::shuffle(foreign.begin(), foreign.end(), draw);
    for (int64_t slot = 0; slot < slots; ++slot)
      owners.push_back(draw() % 10 < empty ? -1 : foreign[static_cast<size_t>(slot)]);
  }
  return owners;
}

struct OwnedRows {
  std::function<comm::Handle(const at::Tensor&out, const at::Tensor&in, const at::Tensor&owners)> fetch, give_back;
};

// Row r of a member is its number times 1 to 4 by column; every slot's gradient has a unique number. Empty slots are
// NaN.
inline void check_owned_rows(const comm::Group& group, const std::vector<int32_t>& owners, int64_t slots,
                             int64_t home, const OwnedRows& how, at::ScalarType type = at::kDouble) {
  const auto number = [&](int64_t n) { return at::arange(1, 5, at::kDouble).mul_(static_cast<double>(n)).to(type); };
  const at::Tensor numbers = at::tensor(at::ArrayRef<int32_t>(owners), at::kInt);
  const auto mine = owners.begin() + group.index() * slots;
  at::Tensor in = at::empty({home, 4}, type),
             out = at::full({slots, 4}, std::numeric_limits<double>::quiet_NaN(), type);
  for (int64_t row = 0; row < home; ++row) in[row].copy_(number(group.index() * home + row));
  how.fetch(out, in, numbers).wait();
  for (int64_t slot = 0; slot < slots; ++slot) {
    if (mine[slot] >= 0) { EXPECT_TRUE(at::equal(out[slot], number(mine[slot]))) << slot; }
  }
  at::Tensor sum = at::full({home, 4}, 1000, type), expected = sum.clone();
  at::Tensor gradient = at::full({slots, 4}, std::numeric_limits<double>::quiet_NaN(), type);
  for (int64_t slot = 0; slot < slots; ++slot) {
    if (mine[slot] >= 0) gradient[slot].copy_(number(group.index() * slots + slot).mul_(0.1));
  }
  for (size_t i = 0; i < owners.size(); ++i) {
    if (owners[i] >= 0 && owners[i] / home == group.index())
      expected[owners[i] % home].add_(number(static_cast<int64_t>(i)).mul_(0.1));
  }
  how.give_back(sum, gradient, numbers).wait();
  EXPECT_TRUE(at::equal(sum, expected)) << "in the order of the slots, bit for bit";
}

inline void check_owned_rows(const comm::Group& group, const OwnedRows& how) {
  std::mt19937 draw(11);
  const int members = group.size();
  for (const int64_t home : {1, 3}) {
    for (const int64_t slots : {1, 2}) {
      if (slots > home * (members - 1)) continue;
      for (const unsigned empty : {0u, 3u, 10u}) {
        const std::vector<int32_t> owners = random_owners(members, slots, home, empty, draw);
        check_owned_rows(group, owners, slots, home, how);
        check_owned_rows(group, owners, slots, home, how, at::kFloat);
      }
    }
  }
  const int owner = members / 2;  // all other members fetch one of its two rows
  std::vector<int32_t> hot(static_cast<size_t>(members), 2 * owner + 1);
  hot[static_cast<size_t>(owner)] = -1;
  check_owned_rows(group, hot, 1, 2, how);
}

// Both weights and both biases of an expert are in flight together, each in several rounds; so are their gradients.
inline void check_several_owned_rows(const comm::Group& group, const OwnedRows& how) {
  constexpr int64_t kHome = 2, kSlots = 2;
  const std::vector<int64_t> widths = {5, 1, 9, 3};
  std::mt19937 draw(7);
  const int me = group.index(), members = group.size();
  for (int repetition = 0; repetition < 3; ++repetition) {
    std::vector<int32_t> owners = random_owners(members, kSlots, kHome, 1, draw);
    for (int member = 1; member < members; ++member) owners[static_cast<size_t>(member * kSlots)] = 1;  // of member 0
    for (int member = 1; member < members; ++member) {
      int32_t& second = owners[static_cast<size_t>(member * kSlots + 1)];
      if (second == 1) second = -1;
    }
    const at::Tensor numbers = at::tensor(at::ArrayRef<int32_t>(owners), at::kInt);
    const auto row = [](int64_t number, int64_t width) {
      return at::arange(1, width + 1, at::kDouble).mul_(static_cast<double>(number + 1) * static_cast<double>(width));
    };
    std::vector<at::Tensor> out, sums;
    std::vector<comm::Handle> handles;
    for (const int64_t width : widths) {
      at::Tensor in = at::empty({kHome, width}, at::kDouble);
      for (int64_t r = 0; r < kHome; ++r) in[r].copy_(row(me * kHome + r, width));
      out.push_back(at::zeros({kSlots, width}, at::kDouble));
      handles.push_back(how.fetch(out.back(), in, numbers));
    }
    for (comm::Handle& handle : handles) handle.wait();
    for (size_t i = 0; i < widths.size(); ++i) {
      for (int64_t slot = 0; slot < kSlots; ++slot) {
        const int32_t owner = owners[static_cast<size_t>(me * kSlots + slot)];
        if (owner >= 0) { EXPECT_TRUE(at::equal(out[i][slot], row(owner, widths[i]))) << i << " " << slot; }
      }
    }
    handles.clear();
    for (const at::Tensor& x : out) {
      sums.push_back(at::zeros({kHome, x.size(1)}, at::kDouble));
      handles.push_back(how.give_back(sums.back(), x, numbers));
    }
    for (comm::Handle& handle : handles) handle.wait();
    for (size_t i = 0; i < widths.size(); ++i) {
      for (int64_t r = 0; r < kHome; ++r) {
        const auto replicas = std::count(owners.begin(), owners.end(), static_cast<int32_t>(me * kHome + r));
        EXPECT_TRUE(at::equal(sums[i][r], row(me * kHome + r, widths[i]).mul_(static_cast<double>(replicas))));
      }
    }
  }
}

inline OwnedRows make_owned_rows(const comm::Group& group) {
  return {[&group](const auto& out, const auto& in, const auto& owners) {
            return comm::fetch_rows_async(out, in, owners, group);
          },
          [&group](const auto& sum, const auto& in, const auto& owners) {
            return comm::return_rows_async(sum, in, owners, group);
          }};
}

}  // namespace metroplex::test
