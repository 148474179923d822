#include "comm/backends/tree.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "base/error.h"
#include "comm/backends/reduce.h"

namespace metroplex::comm {

std::vector<TreeLevel> tree_levels(int rank, int size) {
  std::vector<TreeLevel> levels;
  for (int64_t stride = 1; stride < size; stride *= kTreeBase) {
    const int64_t leader = rank - rank % (stride * kTreeBase);
    TreeLevel level{{}, stride};
    for (int64_t member = leader; member < leader + stride * kTreeBase && member < size; member += stride)
      level.members.push_back(static_cast<int>(member));
    levels.push_back(std::move(level));
    if (leader != rank) break;
  }
  return levels;
}

int tree_parent(int rank) {
  if (rank == 0) return -1;
  int64_t stride = 1;
  while (rank % (stride * kTreeBase) == 0) stride *= kTreeBase;
  return static_cast<int>(rank - rank % (stride * kTreeBase));
}

std::vector<int> tree_children(int rank, int size) {
  std::vector<int> children;
  for (const TreeLevel& level : tree_levels(rank, size)) {
    if (level.members.front() != rank) continue;
    children.insert(children.end(), level.members.begin() + 1, level.members.end());
  }
  return children;
}

namespace {

void wait(const PendingPtr& pending) {
  if (pending) pending->wait();
}

class TreeBackend final : public GroupBackend {
 public:
  TreeBackend(int index, int size, const LevelFactory& make_level) : index_(index), size_(size) {
    for (TreeLevel& level : tree_levels(index, size)) {
      const auto number = static_cast<int>(levels_.size());
      const auto member_index = std::find(level.members.begin(), level.members.end(), index) - level.members.begin();
      std::shared_ptr<GroupBackend> backend;
      if (level.members.size() > 1) backend = make_level("level" + std::to_string(number), level.members);
      levels_.push_back({std::move(level), static_cast<int>(member_index), std::move(backend)});
    }
  }

  PendingPtr gather(at::Tensor out, at::Tensor in, int, int) override {
    const at::Tensor all = gather_subtree(in);
    if (index_ == 0) out.view({size_, -1}).copy_(all);
    return nullptr;
  }
  PendingPtr all_gather(at::Tensor out, at::Tensor in) override {
    const at::NoGradGuard no_grad;
    gather(out, in, index_, static_cast<int>(size_));
    broadcast_down(out);
    return nullptr;
  }
  PendingPtr all_reduce(at::Tensor tensor, ReduceOp op) override {
    const at::NoGradGuard no_grad;
    const at::Tensor all = gather_subtree(tensor);
    if (index_ == 0) tensor.view(-1).copy_(reduce_tensors(all.unbind(0), op));
    broadcast_down(tensor);
    return nullptr;
  }
  PendingPtr reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    const at::NoGradGuard no_grad;
    const at::Tensor sum = in.clone();
    all_reduce(sum, op);
    out.view(-1).copy_(sum.view({size_, -1})[index_]);
    return nullptr;
  }
  PendingPtr broadcast(at::Tensor tensor, int root) override {
    for (int holder = root; holder != 0; holder = tree_parent(holder)) {
      const int parent = tree_parent(holder);
      if (index_ == holder) send_up(tensor);
      if (index_ == parent) receive(tensor, holder);
    }
    broadcast_down(tensor);
    return nullptr;
  }
  void barrier() override {
    const at::Tensor token = at::zeros({1}, at::kByte);
    all_reduce(token, ReduceOp::max);
  }
  PendingPtr all_to_all(at::Tensor, at::Tensor, std::vector<int64_t>, std::vector<int64_t>) override {
    MPX_ASSERT(false, "a tree of ranks does not support all_to_all");
    return nullptr;
  }
  PendingPtr batch_p2p(std::vector<P2pOp>) override {
    MPX_ASSERT(false, "a tree of ranks does not support p2p");
    return nullptr;
  }

 private:
  struct Level {
    TreeLevel tree;
    int member_index = 0;  // index among the members
    std::shared_ptr<GroupBackend> backend;
  };
  bool leads(const Level& level) const { return level.member_index == 0; }

  // Returns the rows of this rank's subtree: row i is from rank index_ + i.
  at::Tensor gather_subtree(const at::Tensor& in) {
    const at::NoGradGuard no_grad;
    const int64_t below = leads(levels_.back()) ? size_ - index_ : levels_.back().tree.stride;
    const at::Tensor rows = at::empty({std::min<int64_t>(below, size_ - index_), in.numel()}, in.options());
    rows[0].copy_(in.view(-1));
    for (const Level& level : levels_) {
      if (!level.backend) continue;
      if (!leads(level)) {
        wait(level.backend->batch_p2p({{true, rows, 0, 0}}));
        break;
      }
      std::vector<P2pOp> receives;
      for (size_t m = 1; m < level.tree.members.size(); ++m) {
        const int64_t first = level.tree.members[m] - index_;
        const int64_t count = std::min(level.tree.stride, rows.size(0) - first);
        receives.push_back({false, rows.narrow(0, first, count), static_cast<int>(m), 0});
      }
      wait(level.backend->batch_p2p(std::move(receives)));
    }
    return rows;
  }
  // Broadcasts from member 0.
  void broadcast_down(const at::Tensor& tensor) {
    for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
      if (level->backend) wait(level->backend->broadcast(tensor, 0));
    }
  }
  void send_up(const at::Tensor& tensor) { wait(levels_.back().backend->batch_p2p({{true, tensor, 0, 0}})); }
  void receive(const at::Tensor& tensor, int child) {
    for (const Level& level : levels_) {
      const auto found = std::find(level.tree.members.begin(), level.tree.members.end(), child);
      if (found == level.tree.members.end()) continue;
      const auto peer = static_cast<int>(found - level.tree.members.begin());
      wait(level.backend->batch_p2p({{false, tensor, peer, 0}}));
      return;
    }
  }

  int index_;
  int64_t size_;
  std::vector<Level> levels_;
};

}  // namespace

std::shared_ptr<GroupBackend> make_tree_backend(int index, int size, const LevelFactory& make_level) {
  return std::make_shared<TreeBackend>(index, size, make_level);
}

}  // namespace metroplex::comm
