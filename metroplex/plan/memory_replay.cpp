#include "plan/memory_replay.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "plan/buckets.h"

namespace metroplex::plan {
namespace {

// Blocks [begin, end) of a chunk: one, or several that run again in backward.
struct Span {
  size_t begin = 0, end = 0;
  bool recomputed = false;
};

std::vector<Span> spans_of(const RankChunk& chunk, const config::Memory& memory) {
  const bool full = memory.recomputes_all(), uniform = memory.recompute_method == config::RecomputeMethod::uniform;
  const auto count = static_cast<size_t>(std::max<int64_t>(1, memory.recompute_num_layers));
  std::vector<Span> spans;
  size_t recomputed = 0;
  for (size_t i = 0; i < chunk.blocks.size(); ++i) {
    const bool again = full && chunk.blocks[i].is_layer && (uniform || recomputed < count);
    const bool joins = again && uniform && !spans.empty() && spans.back().recomputed &&
                       spans.back().end - spans.back().begin < count;
    if (joins) {
      spans.back().end = i + 1;
    } else {
      spans.push_back({i, i + 1, again});
      recomputed += again ? 1 : 0;
    }
  }
  return spans;
}

// Gradient buckets that come and go, see distributed/grad_buffer.h.
class TransientBuckets {
 public:
  TransientBuckets(const ReplayRequest& request)
      : flat_(*request.flat),
        params_(request.model->params),
        element_(request.gradient_bytes),
        overlap_(request.config->parallel.overlap_grad_reduce),
        open_(flat_.buckets.size()),
        waiting_(flat_.buckets.size()),
        round_(params_.size()) {
    for (size_t b = 0; b < flat_.buckets.size(); ++b) begin_round(b);
  }

  void use(size_t param) {
    const size_t b = flat_.bucket_of[param];
    if (--round_[param] != 0 || --waiting_[b] != 0) return;
    held_ -= size(b);
    open_[b] = false;
    flight_ = overlap_ ? size(b) : 0;
    begin_round(b);
  }
  void open(size_t param) {
    const size_t b = flat_.bucket_of[param];
    if (!open_[b]) held_ += size(b);
    open_[b] = true;
    peak_ = std::max(peak_, held());
  }
  int64_t held() const { return held_ + flight_; }
  int64_t peak() const { return peak_; }

 private:
  int64_t size(size_t b) const { return flat_.buckets[b].size * element_; }
  void begin_round(size_t b) {
    waiting_[b] = flat_.buckets[b].params.size();
    for (const size_t i : flat_.buckets[b].params) round_[i] = params_[i].uses_per_microbatch;
  }

  const FlatBuckets& flat_;
  const std::vector<RankParam>& params_;
  int64_t element_;
  bool overlap_;
  std::vector<bool> open_;
  std::vector<size_t> waiting_;
  std::vector<int64_t> round_;
  int64_t held_ = 0, flight_ = 0, peak_ = 0;
};

// Tensors that cross stage borders, as pipeline/executor.cpp holds them; only their number counts.
class OldBorders {
 public:
  using Key = std::pair<int, int>;  // microbatch, chunk

  void hold(int count) { held_ += count; }
  // A receive or a hand-over that `key` waits for.
  void expect(std::map<Key, std::shared_ptr<bool>>& flights, Key key, const std::shared_ptr<bool>& call) {
    flights[key] = call;
    ++held_;
  }
  void take(std::map<Key, std::shared_ptr<bool>>& flights, Key key) {
    const auto found = flights.find(key);
    if (found != flights.end()) {
      *found->second = true;
      flights.erase(found);
      drop(leaving_.size());
    }
    --held_;
  }
  void sent(Key key, const std::shared_ptr<bool>& call) { outputs_[key] = call; }
  void release(Key key) {
    const auto found = outputs_.find(key);
    if (found == outputs_.end()) {
      --held_;
      return;
    }
    leave(found->second);
    outputs_.erase(found);
  }
  void leave(const std::shared_ptr<bool>& call) {
    leaving_.push_back(call);
    drop(2);  // Executor::kMostLeaving
  }
  int64_t held() const { return held_; }

  std::map<Key, std::shared_ptr<bool>> inputs, gradients;

 private:
  void drop(size_t most_left) {
    const auto drop_done = [this] {
      const size_t before = leaving_.size();
      leaving_.erase(std::remove_if(leaving_.begin(), leaving_.end(), [](const auto& call) { return *call; }),
                     leaving_.end());
      held_ -= static_cast<int64_t>(before - leaving_.size());
    };
    drop_done();
    while (leaving_.size() > most_left) {
      *leaving_.front() = true;
      drop_done();
    }
  }

  std::map<Key, std::shared_ptr<bool>> outputs_;
  std::vector<std::shared_ptr<bool>> leaving_;
  int64_t held_ = 0;
};

class Walk {
 public:
  Walk(const PipelineTable& table, const ReplayRequest& request)
      : table_(table), request_(request), buckets_(request), sharding_(request.config->parallel.sharding()) {
    for (const RankChunk& chunk : request.model->chunks) chunks_.push_back(describe(chunk));
  }

  OldReplayPeaks run() {
    const auto& actions = table_.ranks[static_cast<size_t>(request_.pp_rank)];
    for (size_t i = 0; i < actions.size();) {
      size_t end = i + 1;
      const Action& action = actions[i];
      at_ = i;
      before_ = now();
      if (is_p2p(action.kind)) {
        while (end < actions.size() && action.batch >= 0 && actions[end].batch == action.batch &&
               is_p2p(actions[end].kind))
          ++end;
        const auto call = std::make_shared<bool>(false);
        for (size_t a = i; a < end; ++a) exchange(actions[a], call);
      } else {
        compute(action);
      }
      sample();
      i = end;
    }
    peaks_.gradient_buckets = sharding_.transient_gradients() ? buckets_.peak() : 0;
    return peaks_;
  }

 private:
  struct Chunk {
    std::vector<Span> spans;
    int64_t saved = 0;
  };

  int64_t split() const {
    const config::Config& config = *request_.config;
    return config.memory.distribute_saved_activations ? config.parallel.tp() : 1;
  }
  bool file() const { return request_.config->memory.offload_activations == config::Offload::file; }

  Chunk describe(const RankChunk& chunk) const {
    Chunk out{spans_of(chunk, request_.config->memory), 0};
    for (const Span& span : out.spans) out.saved += saved(chunk, span);
    return out;
  }
  // Between forward and backward.
  int64_t saved(const RankChunk& chunk, const Span& span) const {
    const RankBlock& block = chunk.blocks[span.begin];
    if (span.recomputed) return file() ? 0 : block.input / split();
    return file() ? block.saved.stays : block.saved.total();
  }

  // `live` is what the action holds of its own, `gathered` what ZeRO-3 has brought together for it.
  void look(size_t block, size_t ahead) {
    int64_t elements = 0;
    if (sharding_.gathers_units()) {
      std::set<size_t> held;
      for (const size_t s : {block, ahead}) {
        if (s >= chunk_->blocks.size()) continue;
        for (const size_t param : chunk_->blocks[s].params) held.insert(request_.flat->bucket_of[param]);
      }
      for (const size_t bucket : held) elements += request_.flat->buckets[bucket].size;
    }
    peaks_.gathered_elements = std::max(peaks_.gathered_elements, elements);
    gathered_ = elements * element_bytes(request_.config->precision.params_dtype);
  }
  void run(const std::vector<WorkStep>& work, size_t block, bool back) {
    int64_t most = now();
    for (const WorkStep& step : work) {
      live_ += step.bytes;
      if (sharding_.transient_gradients() && step.kind == WorkKind::open) buckets_.open(step.param);
      most = std::max(most, now());
      if (sharding_.transient_gradients() && step.kind == WorkKind::use) buckets_.use(step.param);
    }
    peaks_.most = std::max(peaks_.most, most);
    peaks_.moments.push_back({at_, static_cast<int>(block), back, most - before_});
    gathered_ = 0;
  }
  int64_t now() const {
    return activations_ + borders_.held() * request_.model->border + live_ + gathered_ + buckets_.held();
  }

  // As pipeline/stage.cpp: what runs again keeps its first input, and what arrived over a border lives to the end of
  // the action.
  void run_forward(const Chunk& how, int64_t arrived) {
    live_ = arrived;
    for (const Span& span : how.spans) {
      for (size_t i = span.begin; i < span.end; ++i) {
        const RankBlock& block = chunk_->blocks[i];
        look(i, i + 1);
        run(block.work.forward, i, false);
        if (span.recomputed) live_ -= block.saved.total();
        if (i == span.begin && span.recomputed) live_ += saved(*chunk_, span);
        if (!span.recomputed && file()) live_ -= block.saved.moved;
        const bool lost = file() || (span.recomputed && split() > 1);
        if (i == 0 && lost) live_ += arrived;
      }
    }
  }
  void run_backward(const Chunk& how, int64_t arrived) {
    live_ = how.saved + arrived;
    bool first_gradient = true;
    const auto back = [&](size_t i, size_t ahead) {
      look(i, ahead);
      run(chunk_->blocks[i].work.backward, i, true);
      if (!first_gradient) live_ -= output(i);
      first_gradient = false;
    };
    for (size_t p = how.spans.size(); p-- > 0;) {
      const Span& span = how.spans[p];
      const size_t next = p > 0 ? how.spans[p - 1].begin : chunk_->blocks.size();
      if (span.recomputed) {
        live_ += chunk_->blocks[span.begin].input - saved(*chunk_, span);
        for (size_t i = span.begin; i < span.end; ++i) {
          look(i, std::min(i + 1, span.end - 1));
          run(chunk_->blocks[i].work.forward, i, false);
        }
        live_ -= output(span.end - 1);
      } else if (file()) {
        live_ += chunk_->blocks[span.begin].saved.moved;
      }
      for (size_t i = span.end; i-- > span.begin;) back(i, i > span.begin ? i - 1 : next);
    }
  }
  // Bytes of what a block hands on.
  int64_t output(size_t block) const {
    if (block + 1 < chunk_->blocks.size()) return chunk_->blocks[block + 1].input;
    return chunk_->layers.has_loss ? 0 : request_.model->border;
  }
  bool first(const Action& a) const { return table_.is_first_stage(request_.pp_rank, a.chunk); }
  bool last(const Action& a) const { return table_.is_last_stage(request_.pp_rank, a.chunk); }

  void exchange(const Action& a, const std::shared_ptr<bool>& call) {
    const OldBorders::Key key{a.microbatch, a.chunk};
    switch (a.kind) {
      case ActionKind::send_forward:
        return borders_.sent(key, call);
      case ActionKind::send_backward:
        return borders_.leave(call);
      case ActionKind::recv_forward:
        return borders_.expect(borders_.inputs, key, call);
      default:
        return borders_.expect(borders_.gradients, key, call);
    }
  }

  void compute(const Action& a) {
    const OldBorders::Key key{a.microbatch, a.chunk};
    const auto chunk = static_cast<size_t>(a.chunk);
    chunk_ = &request_.model->chunks[chunk];
    const int64_t border = request_.model->border;
    if (a.kind == ActionKind::forward) {
      if (!first(a)) borders_.take(borders_.inputs, key);
      run_forward(chunks_[chunk], first(a) ? 0 : border);
      activations_ += chunks_[chunk].saved;
      if (last(a)) {
        activations_ += request_.model->loss;  // stays until the end of the step
      } else {
        borders_.hold(1);
      }
    } else if (a.kind == ActionKind::backward) {
      if (!last(a)) borders_.take(borders_.gradients, key);
      activations_ -= chunks_[chunk].saved;
      run_backward(chunks_[chunk], last(a) ? 0 : border);
      if (!first(a)) borders_.hold(1);
    } else if (a.kind == ActionKind::free && !last(a) && table_.num_stages > 1) {
      borders_.release(key);
    }
    live_ = 0;
  }

  void sample() {
    peaks_.most = std::max(peaks_.most, now());
    const int64_t borders = borders_.held() * request_.model->border;
    if (activations_ + borders <= peaks_.activations + peaks_.borders) return;
    peaks_.activations = activations_;
    peaks_.borders = borders;
  }

  const PipelineTable& table_;
  const ReplayRequest& request_;
  TransientBuckets buckets_;
  config::Sharding sharding_;
  std::vector<Chunk> chunks_;
  OldBorders borders_;
  OldReplayPeaks peaks_;
  int64_t activations_ = 0;
  // Of the action at work.
  const RankChunk* chunk_ = nullptr;
  size_t at_ = 0;
  int64_t before_ = 0, live_ = 0, gathered_ = 0;
};

}  // namespace

FlatBuckets flat_buckets(const RankModel& model, const FlatRequest& request) {
  std::vector<size_t> units;
  for (const RankChunk& chunk : model.chunks) {
    for (const RankBlock& block : chunk.blocks) units.push_back(block.num_own);
  }
  if (!request.sharding.gathers_units()) units = {model.params.size()};
  FlatBuckets flat;
  flat.bucket_of.resize(model.params.size());
  flat.own.resize(model.params.size());
  size_t end = model.params.size();
  for (size_t u = units.size(); u-- > 0;) {  // the range runs from the last parameter to the first
    const size_t first = end - units[u], before = flat.buckets.size();
    std::vector<BucketParam> wanted;
    for (size_t i = first; i < end; ++i) wanted.push_back({model.params[i].numel(), model.params[i].shared});
    BucketOptions options;
    options.bucket_size = request.bucket_size;
    if (request.sharding.any()) options = distributed_optimizer_buckets(request.bucket_size, request.parts);
    const BucketPlan plan = plan_buckets(wanted, options);
    for (const Bucket& bucket : plan.buckets) flat.buckets.push_back({bucket.end - bucket.begin, {}});
    for (size_t i = first; i < end; ++i) {
      const BucketSlot& slot = plan.slots[i - first];
      const auto [own_begin, own_end] =
          bucket_shard(plan.buckets[static_cast<size_t>(slot.bucket)], request.parts, request.index);
      flat.bucket_of[i] = before + static_cast<size_t>(slot.bucket);
      flat.buckets[flat.bucket_of[i]].params.push_back(i);
      flat.own[i] = std::max<int64_t>(0, std::min(slot.end, own_end) - std::max(slot.begin, own_begin));
    }
    flat.numel += plan.num_elements;
    end = first;
  }
  flat.own_numel = flat.numel / request.parts;
  return flat;
}

OldReplayPeaks replay_memory(const PipelineTable& table, const ReplayRequest& request) {
  return Walk(table, request).run();
}

}  // namespace metroplex::plan
