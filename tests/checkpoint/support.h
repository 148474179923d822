// Ranks that run as threads and communicate through an Exchange, and a small model with known values and arbitrary
// sharding.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/exchange.h"
#include "checkpoint/load.h"
#include "checkpoint/pieces.h"
#include "checkpoint/save.h"
#include "files/fault_file_system.h"
#include "files/manifest.h"

namespace metroplex::checkpoint {

inline SaveResult save(files::FileSystem& disk, const std::string& root, const RunState& state,
                       const std::vector<LocalPiece>& pieces, Exchange& exchange) {
  return save(
      disk, root, state, [&] { return pieces; }, exchange);
}

// Runs `work(exchange)` on `ranks` threads. If a rank throws, the other ranks' next Exchange call throws
// SimulatedCrash, as if the process group had died. Returns true if any rank crashed.
class RankThreads {
 public:
  explicit RankThreads(int ranks) : ranks_(ranks), texts_(static_cast<size_t>(ranks)) {}

  bool run(const std::function<void(Exchange&)>& work) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([this, rank, &work] {
        Member member(*this, rank);
        try {
          work(member);
        } catch (const files::SimulatedCrash&) {
          const std::lock_guard guard(mutex_);
          dead_ = true;
          changed_.notify_all();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return dead_;
  }

 private:
  class Member final : public Exchange {
   public:
    Member(RankThreads& group, int rank) : group_(group), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return group_.ranks_; }
    std::vector<std::string> gather(const std::string& text) override {
      const auto texts = group_.meet(rank_, text);
      return rank_ == 0 ? texts : std::vector<std::string>{};
    }
    std::string broadcast(const std::string& text) override { return group_.meet(rank_, text)[0]; }

   private:
    RankThreads& group_;
    int rank_;
  };

  std::vector<std::string> meet(int rank, const std::string& text) {
    std::unique_lock lock(mutex_);
    const int round = round_;
    texts_[static_cast<size_t>(rank)] = text;
    if (++arrived_ == ranks_) {
      met_ = texts_;
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round || dead_; });
    if (round_ == round) throw files::SimulatedCrash{};
    return met_;
  }

  int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_, met_;
  int arrived_ = 0, round_ = 0;
  bool dead_ = false;
};

struct ModelTensor {
  std::string name, kind;
  Dims shape;
  files::Dtype dtype;
};

inline std::vector<ModelTensor> small_model() {
  using files::Dtype;
  return {{"embedding.word_embeddings.weight", "weight", {13, 6}, Dtype::kBF16},
          {"embedding.word_embeddings.weight", "exp_avg", {13, 6}, Dtype::kF32},
          {"decoder.layers.0.mlp.linear_fc1.weight", "weight", {8, 6}, Dtype::kF32},
          {"decoder.layers.1.self_attention.linear_qkv.weight", "weight", {3, 4, 5}, Dtype::kF64},
          {"decoder.final_layernorm.weight", "main", {7}, Dtype::kF32},
          {"optimizer.step", "count", {}, Dtype::kI64}};
}

// Returns 64 random bits for element `index` at `version`; the element is the leading bytes of the value.
inline uint64_t model_value(const ModelTensor& tensor, int64_t index, int64_t version) {
  std::mt19937_64 random(std::hash<std::string>()(tensor.name + "|" + tensor.kind) +
                         static_cast<uint64_t>(index) * 1000003 + static_cast<uint64_t>(version) * 7);
  return random();
}

inline std::string whole_data(const ModelTensor& tensor, int64_t version) {
  const auto width = static_cast<size_t>(files::dtype_bits(tensor.dtype) / 8);
  std::string data;
  for (int64_t i = 0; i < files::element_count(tensor.shape); ++i) {
    const uint64_t value = model_value(tensor, i, version);
    data.append(reinterpret_cast<const char*>(&value), width);
  }
  return data;
}

// Randomly partitions a tensor into disjoint regions: splits boxes along random dimensions, then splits some into
// flat ranges.
inline std::vector<Piece> random_cut(const Dims& shape, std::mt19937_64& random) {
  std::vector<Piece> pieces{whole_piece(shape)};
  for (uint64_t cuts = random() % 5; cuts > 0; --cuts) {
    const size_t at = random() % pieces.size();
    Piece piece = pieces[at];
    if (shape.empty() || piece.count() == 0) continue;
    const size_t d = random() % shape.size();
    const int64_t first = static_cast<int64_t>(random() % static_cast<uint64_t>(piece.size[d] + 1));
    Dims size_a = piece.size, size_b = piece.size, offset_b = piece.offset;
    size_a[d] = first;
    size_b[d] -= first;
    offset_b[d] += first;
    pieces[at] = box_piece(piece.offset, size_a);
    pieces.push_back(box_piece(offset_b, size_b));
  }
  for (uint64_t cuts = random() % 4; cuts > 0; --cuts) {
    const size_t at = random() % pieces.size();
    Piece piece = pieces[at];
    const int64_t middle = piece.begin + static_cast<int64_t>(random() % static_cast<uint64_t>(piece.count() + 1));
    pieces[at].end = middle;
    piece.begin = middle;
    pieces.push_back(piece);
  }
  std::erase_if(pieces, [](const Piece& piece) { return piece.count() == 0; });
  return pieces;
}

struct OwnedPiece {
  ModelTensor tensor;
  Piece piece;
  std::string data;
};

inline LocalPiece as_local(const OwnedPiece& owned) {
  const auto& [tensor, piece, data] = owned;
  return {tensor.name,  tensor.kind, tensor.shape, piece.offset, piece.size,
          tensor.dtype, data.data(), piece.begin,  piece.end};
}

// The model's regions distributed over the ranks; layout 0 gives rank 0 all tensors whole.
inline std::vector<std::vector<OwnedPiece>> deal(const std::vector<ModelTensor>& model, int ranks, uint64_t layout,
                                                 int64_t version) {
  std::mt19937_64 random(layout);
  std::vector<std::vector<OwnedPiece>> dealt(static_cast<size_t>(ranks));
  for (const ModelTensor& tensor : model) {
    const std::string whole = whole_data(tensor, version);
    const int64_t width = files::dtype_bits(tensor.dtype) / 8;
    for (const Piece& piece :
         layout == 0 ? std::vector<Piece>{whole_piece(tensor.shape)} : random_cut(tensor.shape, random)) {
      OwnedPiece owned{tensor, piece, std::string(static_cast<size_t>(piece.count() * width), '\0')};
      copy_overlap(whole_piece(tensor.shape), whole.data(), piece, owned.data.data(), width);
      dealt[layout == 0 ? 0 : random() % static_cast<uint64_t>(ranks)].push_back(std::move(owned));
    }
  }
  return dealt;
}

struct SavePlan {
  int ranks = 1;
  uint64_t layout = 0;
  int64_t iteration = 10;  // also the version of the values
  std::string root = "/ckpt";
  std::optional<std::string> parent = std::nullopt;
};

// Returns rank 0's result; `crashed` is set if the processes died.
inline SaveResult save_model(files::FileSystem& disk, const SavePlan& plan, bool* crashed = nullptr) {
  const auto dealt = deal(small_model(), plan.ranks, plan.layout, plan.iteration);
  SaveResult result;
  RankThreads group(plan.ranks);
  const bool dead = group.run([&](Exchange& exchange) {
    std::vector<LocalPiece> pieces;
    for (const OwnedPiece& owned : dealt[static_cast<size_t>(exchange.rank())]) pieces.push_back(as_local(owned));
    RunState state{plan.iteration, plan.iteration * 64, "run: {seed: 1}\n", R"({"lr":0.5})", plan.parent};
    const SaveResult mine = save(disk, plan.root, state, pieces, exchange);
    if (exchange.rank() == 0) result = mine;
  });
  if (crashed != nullptr) *crashed = dead;
  return result;
}

// "" if every tensor, read in the regions of another layout, has the values of `version`.
inline std::string check_model(Reader& reader, int64_t version, uint64_t layout) {
  for (const auto& rank : deal(small_model(), 3, layout, version)) {
    for (const OwnedPiece& wanted : rank) {
      std::string got(wanted.data.size(), '\x5a');
      const auto& [tensor, piece, data] = wanted;
      reader.fill({tensor.name, tensor.kind, tensor.shape, piece.offset, piece.size, tensor.dtype, got.data(),
                   piece.begin, piece.end});
      if (got != data) return tensor.name + " " + tensor.kind + " " + describe(piece);
    }
  }
  return "";
}

}  // namespace metroplex::checkpoint
