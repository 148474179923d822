#include "comm/backends/gloo.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>

#include "base/error.h"
#include "comm/backends/gloo_state.h"
#include "comm/backends/owned_rows.h"
#include "comm/backends/reduce.h"
#include "comm/backends/tree.h"

namespace metroplex::comm {
namespace {

constexpr int64_t kDirectBytes = 1 << 16;  // up to this size an all-reduce is an all-gather and a local sum

// The members of one group. Operations in flight share it and may outlive the backend.
struct Mesh {
  std::shared_ptr<GlooState> state;
  std::string description;  // "group tp (rank 0, rank 1)"
  std::vector<int> ranks;
  int index = 0;
  int number = 0;
  std::string key;  // name of the group's own connections; "": the group uses the world mesh
  GlooMesh own;

  c10d::ProcessGroupGloo& connections() {
    if (key.empty()) return *state->world_mesh();
    if (!own) own = state->connect(key, index, size());
    return *own;
  }
  // Returns the index of member `peer` within the connections.
  int connection_index(int peer) const { return key.empty() ? ranks[static_cast<size_t>(peer)] : peer; }

  // 31 bits: group | p2p channel or collective | running number. The number may wrap around long after its last use.
  int tag(int kind, int64_t running) const {
    return (number & 0x3ff) << 21 | kind << 19 | static_cast<int>(running & 0x7ffff);
  }
  int size() const { return static_cast<int>(ranks.size()); }
};

// Transfers in flight. Empty transfers are never started, because both ends have the sizes and skip them.
class Transfers {
 public:
  void send(Mesh& mesh, const at::Tensor& tensor, int peer, int tag) {
    if (tensor.numel() == 0) return;
    std::vector<at::Tensor> list{tensor};
    open_.push_back(
        {start(mesh, peer, [&] { return mesh.connections().send(list, mesh.connection_index(peer), tag); }), peer});
  }
  void receive(Mesh& mesh, const at::Tensor& tensor, int peer, int tag) {
    if (tensor.numel() == 0) return;
    std::vector<at::Tensor> list{tensor};
    open_.push_back(
        {start(mesh, peer, [&] { return mesh.connections().recv(list, mesh.connection_index(peer), tag); }), peer});
  }
  void wait(Mesh& mesh, const std::string& what) {
    for (const auto& [work, peer] : open_) {
      mesh.state->wait(work, mesh.ranks[static_cast<size_t>(peer)], what + " of " + mesh.description);
    }
    open_.clear();
  }

 private:
  // A connection that is already closed fails here, not in wait().
  template <class Issue>
  static c10::intrusive_ptr<c10d::Work> start(Mesh& mesh, int peer, const Issue& issue) {
    const int rank = mesh.ranks[static_cast<size_t>(peer)];
    mesh.connections();
    try {
      return issue();
    } catch (const std::exception&) {
      mesh.state->throw_transfer_error(rank, "the start of a transfer of " + mesh.description,
                                       failure_cause(std::current_exception()));
    }
  }
  std::vector<std::pair<c10::intrusive_ptr<c10d::Work>, int>> open_;
};

constexpr int kCollectiveKind = 2;  // 0 and 1: the p2p channels

// Receives first and nearest neighbor first, so that the members do not all send to the same rank.
template <class Select>
void exchange(Mesh& mesh, Transfers& transfers, int tag, const Select& outgoing, const Select& incoming) {
  for (int step = 1; step < mesh.size(); ++step) {
    const int peer = (mesh.index + mesh.size() - step) % mesh.size();
    transfers.receive(mesh, incoming(peer), peer, tag);
  }
  for (int step = 1; step < mesh.size(); ++step) {
    const int peer = (mesh.index + step) % mesh.size();
    transfers.send(mesh, outgoing(peer), peer, tag);
  }
}
using SelectTensor = std::function<at::Tensor(int)>;

class GlooPending final : public Pending {
 public:
  GlooPending(std::shared_ptr<Mesh> mesh, std::string what) : mesh_(std::move(mesh)), what_(std::move(what)) {}
  Transfers& transfers() { return transfers_; }
  void then(std::function<void()> finish) { finish_ = std::move(finish); }
  void wait() override {
    transfers_.wait(*mesh_, what_);
    if (!finish_) return;
    const at::NoGradGuard no_grad;
    finish_();
    finish_ = nullptr;
  }

 private:
  std::shared_ptr<Mesh> mesh_;
  std::string what_;
  Transfers transfers_;
  std::function<void()> finish_;
};

at::Tensor rows(const at::Tensor& flat, int64_t num_chunks, int index) {
  const int64_t size = flat.numel() / num_chunks;
  return flat.view(-1).narrow(0, size * index, size);
}

class GlooBackend final : public GroupBackend {
 public:
  explicit GlooBackend(std::shared_ptr<Mesh> mesh)
      : mesh_(std::move(mesh)), sent_(mesh_->ranks.size()), received_(mesh_->ranks.size()) {}

  PendingPtr all_reduce(at::Tensor tensor, ReduceOp op) override {
    if (static_cast<int64_t>(tensor.nbytes()) > kDirectBytes && mesh_->size() > 2)
      return all_reduce_large(tensor, op);
    auto pending = start("all_reduce");
    const at::Tensor all = at::empty({mesh_->size(), tensor.numel()}, tensor.options());
    const at::Tensor flat = tensor.view(-1);
    all[mesh_->index].copy_(flat);
    exchange<SelectTensor>(
        *mesh_, pending->transfers(), next_tag(), [&](int) { return flat; }, [&](int peer) { return all[peer]; });
    pending->then([all, flat, op] { flat.copy_(reduce_tensors(all.unbind(0), op)); });
    return pending;
  }

  PendingPtr all_gather(at::Tensor out, at::Tensor in) override {
    auto pending = start("all_gather");
    const at::Tensor own = rows(out, mesh_->size(), mesh_->index);
    const at::Tensor flat = in.view(-1);
    if (own.const_data_ptr() != flat.const_data_ptr()) own.copy_(flat);
    exchange<SelectTensor>(
        *mesh_, pending->transfers(), next_tag(), [&](int) { return flat; },
        [&](int peer) { return rows(out, mesh_->size(), peer); });
    return pending;
  }

  PendingPtr reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    auto pending = start("reduce_scatter");
    const at::Tensor all = scatter_chunks(*pending, in);
    pending->then([all, out, op] { out.view(-1).copy_(reduce_tensors(all.unbind(0), op)); });
    return pending;
  }

  PendingPtr broadcast(at::Tensor tensor, int root) override {
    auto pending = start("broadcast");
    const int tag = next_tag();
    if (mesh_->index != root) pending->transfers().receive(*mesh_, tensor, root, tag);
    for (int peer = 0; mesh_->index == root && peer < mesh_->size(); ++peer) {
      if (peer != root) pending->transfers().send(*mesh_, tensor, peer, tag);
    }
    return pending;
  }

  PendingPtr all_to_all(at::Tensor out, at::Tensor in, std::vector<int64_t> out_splits,
                        std::vector<int64_t> in_splits) override {
    auto pending = start("all_to_all");
    const auto part = [](const at::Tensor& tensor, const std::vector<int64_t>& splits, int index) {
      const int64_t begin = std::accumulate(splits.begin(), splits.begin() + index, int64_t{0});
      return tensor.narrow(0, begin, splits[static_cast<size_t>(index)]);
    };
    part(out, out_splits, mesh_->index).copy_(part(in, in_splits, mesh_->index));
    exchange<SelectTensor>(
        *mesh_, pending->transfers(), next_tag(), [&](int peer) { return part(in, in_splits, peer); },
        [&](int peer) { return part(out, out_splits, peer); });
    return pending;
  }

  PendingPtr fetch_rows(at::Tensor out, at::Tensor in, at::Tensor owners, int index) override;

  PendingPtr batch_p2p(std::vector<P2pOp> ops) override {
    auto pending = start("send/receive");
    for (const P2pOp& op : ops) {
      auto& count = (op.is_send ? sent_ : received_)[static_cast<size_t>(op.peer)][static_cast<size_t>(op.channel)];
      const int tag = mesh_->tag(op.channel, count++);
      if (op.is_send) pending->transfers().send(*mesh_, op.tensor, op.peer, tag);
      else pending->transfers().receive(*mesh_, op.tensor, op.peer, tag);
    }
    return pending;
  }

  void barrier() override { all_gather(at::empty({mesh_->size()}, at::kByte), at::zeros({1}, at::kByte))->wait(); }

 private:
  std::shared_ptr<GlooPending> start(const char* what) {
    mesh_->state->throw_if_aborted();
    return std::make_shared<GlooPending>(mesh_, what);
  }
  int next_tag() { return mesh_->tag(kCollectiveKind, next_number_++); }

  // Sends part i of `in` to member i. Row i of the result is the part from member i.
  at::Tensor scatter_chunks(GlooPending& pending, const at::Tensor& in) {
    const int size = mesh_->size();
    const at::Tensor all = at::empty({size, in.numel() / size}, in.options());
    all[mesh_->index].copy_(rows(in, size, mesh_->index));
    exchange<SelectTensor>(
        *mesh_, pending.transfers(), next_tag(), [&](int peer) { return rows(in, size, peer); },
        [&](int peer) { return all[peer]; });
    return all;
  }

  // Every member sums one part from all members, then the parts are all-gathered. The second phase starts when the
  // first completes, which must not depend on this rank's wait(). A thread of the operation therefore runs it, and
  // its tag is reserved now.
  PendingPtr all_reduce_large(const at::Tensor& tensor, ReduceOp op);

  std::shared_ptr<Mesh> mesh_;
  int64_t next_number_ = 0;
  std::vector<std::array<int64_t, 2>> sent_, received_;  // per peer and channel
};

class ThreadPending final : public Pending {
 public:
  explicit ThreadPending(std::function<void()> body)
      : thread_([this, body = std::move(body)] {
          try {
            body();
          } catch (...) { error_ = std::current_exception(); }
        }) {}
  ~ThreadPending() override {
    if (thread_.joinable()) thread_.join();
  }
  void wait() override {
    if (thread_.joinable()) thread_.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
  std::thread thread_;
};

PendingPtr GlooBackend::all_reduce_large(const at::Tensor& tensor, ReduceOp op) {
  const int size = mesh_->size();
  const int64_t padded = (tensor.numel() + size - 1) / size * size;
  at::Tensor flat = tensor.view(-1);
  if (padded != tensor.numel()) flat = at::constant_pad_nd(flat, {0, padded - tensor.numel()}, 0);
  auto first = start("all_reduce");
  const at::Tensor all = scatter_chunks(*first, flat);
  const int tag = next_tag();
  return std::make_shared<ThreadPending>([mesh = mesh_, first, all, flat, tensor, op, tag, size] {
    const at::NoGradGuard no_grad;
    first->wait();
    const at::Tensor own = rows(flat, size, mesh->index);
    own.copy_(reduce_tensors(all.unbind(0), op));
    Transfers transfers;
    exchange<SelectTensor>(
        *mesh, transfers, tag, [&](int) { return own; }, [&](int peer) { return rows(flat, size, peer); });
    transfers.wait(*mesh, "all_reduce");
    if (flat.const_data_ptr() != tensor.const_data_ptr()) tensor.view(-1).copy_(flat.narrow(0, 0, tensor.numel()));
  });
}

// Like fetch_by_hops, but a row is relayed as soon as it arrives instead of in this rank's wait(). Receives and sends
// of owned rows start at once; a thread of the operation relays the other rows. Each hop between two members has its
// own tag.
PendingPtr GlooBackend::fetch_rows(at::Tensor out, at::Tensor in, at::Tensor owners, int index) {
  struct RelayedRow {
    at::Tensor row;
    int64_t slot;  // slot that receives it
    int to, tag;
  };
  auto pending = start("fetch_rows");
  std::map<int64_t, Transfers> receives;  // keyed by slot
  std::vector<RelayedRow> relays;
  std::map<std::pair<int, int>, int64_t> hops_between;
  const int64_t slots = out.size(0), first = std::exchange(next_number_, next_number_ + slots);
  for (const std::vector<Hop>& round : relay_hops(owner_numbers(owners), slots, in.size(0))) {
    for (const Hop& hop : round) {
      const int tag = mesh_->tag(kCollectiveKind, first + hops_between[{hop.from, hop.to}]++);
      if (hop.to == index) receives[hop.to_slot].receive(*mesh_, out[hop.to_slot], hop.from, tag);
      if (hop.from != index) continue;
      if (hop.from_slot < 0) pending->transfers().send(*mesh_, in[hop.row], hop.to, tag);
      else relays.push_back({out[hop.from_slot], hop.from_slot, hop.to, tag});
    }
  }
  if (relays.empty()) {
    pending->then([mesh = mesh_, receives]() mutable {
      for (auto& [slot, transfers] : receives) transfers.wait(*mesh, "fetch_rows");
    });
    return pending;
  }
  return std::make_shared<ThreadPending>([mesh = mesh_, pending, receives, relays]() mutable {
    for (const RelayedRow& row : relays) {
      receives.at(row.slot).wait(*mesh, "fetch_rows");
      pending->transfers().send(*mesh, row.row, row.to, row.tag);
    }
    for (auto& [slot, transfers] : receives) transfers.wait(*mesh, "fetch_rows");
    pending->wait();
  });
}

}  // namespace

std::string group_key(const GroupSpec& spec) {
  const std::vector<int>& ranks = spec.ranks;
  uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const int rank : ranks) hash = (hash ^ static_cast<uint64_t>(rank)) * 1099511628211U;
  return base::concat(to_string(spec.purpose), "/", spec.name, "/", ranks.front(), "-", ranks.back(), "/",
                      ranks.size(), "/", hash);
}

std::shared_ptr<GroupBackend> make_host_backend(const GroupSpec& spec, int rank, const GroupFactory& make_small) {
  const std::vector<int>& ranks = spec.ranks;
  if (ranks.size() <= kTreeBase) return make_small(spec);
  const auto index = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  return make_tree_backend(index, static_cast<int>(ranks.size()),
                           [&](const std::string& level, const std::vector<int>& indices) {
                             std::vector<int> members;
                             for (const int i : indices) members.push_back(ranks[static_cast<size_t>(i)]);
                             return make_small({spec.name + "/" + level, spec.purpose, members});
                           });
}

GlooContext::GlooContext(GlooOptions options) : state_(std::make_shared<GlooState>(std::move(options))) {}
GlooContext::~GlooContext() = default;

std::shared_ptr<GroupBackend> GlooContext::backend(const GroupSpec& spec) {
  if (state_->options().full_mesh) return mesh_backend(spec);
  return make_host_backend(spec, state_->options().rank,
                           [this](const GroupSpec& part) { return mesh_backend(part); });
}

std::shared_ptr<GroupBackend> GlooContext::mesh_backend(const GroupSpec& spec) {
  const std::vector<int>& ranks = spec.ranks;
  auto mesh = std::make_shared<Mesh>();
  mesh->state = state_;
  mesh->ranks = ranks;
  const auto found = std::find(ranks.begin(), ranks.end(), state_->options().rank);
  MPX_ASSERT(found != ranks.end(), "rank ", state_->options().rank, " is not in group ", spec.name);
  mesh->index = static_cast<int>(found - ranks.begin());
  std::string description;
  for (const int rank : ranks) description += (description.empty() ? "" : ", ") + state_->options().rank_name(rank);
  if (ranks.size() > 16)
    description = base::concat(ranks.size(), " ranks from ", ranks.front(), " to ", ranks.back());
  mesh->description = "group " + spec.name + " (" + description + ")";
  if (state_->options().full_mesh) mesh->number = state_->group_number(spec);
  else mesh->key = group_key(spec);
  return std::make_shared<GlooBackend>(std::move(mesh));
}

void GlooContext::fail(const std::exception_ptr& exception) { state_->fail(exception); }

}  // namespace metroplex::comm
