#include "checkpoint/rewrite.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/pieces.h"

namespace metroplex::checkpoint {
namespace {

// Synchronizes threads in each call. No thread leaves early, because save() throws no exceptions of its own.
class Meeting {
 public:
  explicit Meeting(int ranks) : texts_(static_cast<size_t>(ranks)) {}

  std::vector<std::string> meet(int rank, const std::string& text) {
    std::unique_lock lock(mutex_);
    const int64_t round = round_;
    texts_[static_cast<size_t>(rank)] = text;
    if (++arrived_ == texts_.size()) {
      met_ = texts_, arrived_ = 0, ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round; });
    return met_;  // stable: the next round ends only after this thread calls again
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_, met_;
  size_t arrived_ = 0;
  int64_t round_ = 0;
};

class MeetingExchange final : public Exchange {
 public:
  MeetingExchange(Meeting& meeting, int rank, int size) : meeting_(meeting), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> gather(const std::string& text) override {
    auto texts = meeting_.meet(rank_, text);
    return rank_ == 0 ? texts : std::vector<std::string>{};
  }
  std::string broadcast(const std::string& text) override { return meeting_.meet(rank_, text)[0]; }

 private:
  Meeting& meeting_;
  int rank_, size_;
};

int64_t row_bytes(const files::TensorForm& tensor) {
  const int64_t rows = row_count(tensor);
  return rows == 0 ? 0 : files::element_count(tensor.shape) / rows * (files::dtype_bits(tensor.dtype) / 8);
}

LocalPiece make_piece(TensorSource& source, const files::TensorForm& tensor, int64_t from, int64_t to) {
  LocalPiece piece{tensor.name, tensor.kind, tensor.shape, Dims(tensor.shape.size(), 0), tensor.shape, tensor.dtype};
  if (!tensor.shape.empty()) piece.offset[0] = from, piece.size[0] = to - from;
  piece.produce = [&source, &tensor, from, to](const Sink& sink) { read_rows(source, tensor, from, to, sink); };
  return piece;
}

// Returns the shards of `rank`. All tensors are concatenated and divided into equal byte ranges. A row belongs to
// the rank in whose range it starts. A tensor without elements belongs to the first rank.
std::vector<LocalPiece> share(TensorSource& source, int rank, int ranks,
                              const std::function<bool(const files::TensorForm&)>& wanted) {
  int64_t total = 0;
  for (const files::TensorForm& tensor : source.tensors())
    total += wanted(tensor) ? row_count(tensor) * row_bytes(tensor) : 0;
  const int64_t each = total / ranks + (total % ranks != 0 ? 1 : 0);
  const int64_t begin = each * rank, end = each * (rank + 1);
  std::vector<LocalPiece> pieces;
  int64_t at = 0;
  for (const files::TensorForm& tensor : source.tensors()) {
    if (!wanted(tensor)) continue;
    const int64_t rows = row_count(tensor), bytes = row_bytes(tensor);
    if (rows * bytes == 0 && rank == 0) pieces.push_back(make_piece(source, tensor, 0, rows));
    if (rows * bytes == 0) continue;
    const auto row_at = [&](int64_t place) {
      return place <= at ? 0 : std::min((place - at + bytes - 1) / bytes, rows);
    };
    const int64_t from = row_at(begin), to = row_at(end);
    if (from < to) pieces.push_back(make_piece(source, tensor, from, to));
    at += rows * bytes;
  }
  return pieces;
}

}  // namespace

int64_t row_count(const files::TensorForm& tensor) { return tensor.shape.empty() ? 1 : tensor.shape[0]; }

void read_rows(TensorSource& source, const files::TensorForm& tensor, int64_t from, int64_t to, const Sink& sink) {
  const int64_t step = std::max<int64_t>(1, kRewriteSlabBytes / std::max<int64_t>(1, row_bytes(tensor)));
  std::vector<char> slab;
  Dims offset(tensor.shape.size(), 0), size = tensor.shape;
  for (int64_t row = from; row < to; row += step) {
    const int64_t rows = std::min(step, to - row);
    if (!size.empty()) offset[0] = row, size[0] = rows;
    slab.resize(static_cast<size_t>(rows * row_bytes(tensor)));
    source.fill({tensor.name, tensor.kind, tensor.shape, offset, size, tensor.dtype, slab.data()});
    sink(slab.data(), slab.size());
  }
}

SaveResult rewrite(files::FileSystem& disk, const OpenSource& open, const std::string& root, const RunState& state,
                   int ranks, const std::function<bool(const files::TensorForm&)>& wanted) {
  std::vector<std::unique_ptr<TensorSource>> sources;
  for (int rank = 0; rank < ranks; ++rank) sources.push_back(open());
  Meeting meeting(ranks);
  std::vector<SaveResult> results(sources.size());
  base::run_together(ranks, [&](int rank) {
    MeetingExchange exchange(meeting, rank, ranks);
    TensorSource& source = *sources[static_cast<size_t>(rank)];
    results[static_cast<size_t>(rank)] = save(
        disk, root, state, [&] { return share(source, rank, ranks, wanted); }, exchange);
  });
  MPX_CHECK(results[0].ok, "checkpoint", results[0].error);
  return results[0];
}

}  // namespace metroplex::checkpoint
