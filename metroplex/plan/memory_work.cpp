#include "plan/memory_work.h"

#include "base/error.h"
#include "plan/rank_model.h"

namespace metroplex::plan {
namespace {

// A tensor on a tape: freed once, or never there.
struct Held {
  int64_t bytes = 0;
};

class Tape {
 public:
  explicit Tape(std::vector<WorkStep>& steps) : steps_(steps) {}
  Held make(int64_t bytes) {
    if (bytes != 0) steps_.push_back({WorkKind::bytes, bytes, 0});
    return {bytes};
  }
  void drop(Held& held) {
    if (held.bytes != 0) steps_.push_back({WorkKind::bytes, -held.bytes, 0});
    held.bytes = 0;
  }
  template <class... More>
  void drop(Held& first, More&... more) {
    drop(first);
    drop(more...);
  }
  // There and gone.
  void touch(int64_t bytes) {
    Held held = make(bytes);
    drop(held);
  }
  void open(size_t param) { steps_.push_back({WorkKind::open, 0, param}); }
  void use(size_t param) { steps_.push_back({WorkKind::use, 0, param}); }

 private:
  std::vector<WorkStep>& steps_;
};

// What both kinds of layers share: sizes, and parameters taken by the end of their names.
class Writer {
 public:
  explicit Writer(const WorkRequest& request)
      : r_(request), z_(request.sizes), forward_(work_.forward), back_(work_.backward) {}
  Work take() { return std::move(work_); }

 protected:
  int64_t rows(int64_t width, int64_t element) const { return z_.rows * width * element; }
  int64_t tokens(int64_t width, int64_t element) const { return z_.tokens * width * element; }
  int64_t gathered() const { return splits() ? tokens(z_.h, z_.element) : 0; }
  bool splits() const { return r_.config->parallel.sequence_parallel && z_.tp > 1; }
  bool half() const { return r_.config->precision.half(); }
  bool remakes(const char* module) const { return r_.config->memory.recomputes(module); }

  // Adds to the gradient of the parameter whose name ends so, if there is one. `product`: that of a matrix, which is
  // made by itself where the gradient is of another type; fp16 rounds each use by itself.
  void accumulate(const std::string& ending, bool product) {
    for (const size_t index : *r_.own) {
      const RankParam& param = r_.params->at(index);
      if (param.name.size() < ending.size() ||
          param.name.compare(param.name.size() - ending.size(), ending.size(), ending) != 0)
        continue;
      back_.open(index);
      const bool rounds = r_.config->precision.params_dtype == config::ParamsDtype::fp16,
                 mixed = z_.gradient != z_.element;
      Held one_use = back_.make(rounds ? param.numel() * z_.gradient : 0);
      if (product && mixed) back_.touch(param.numel() * z_.element);
      if (rounds && mixed) back_.touch(param.numel() * z_.element);
      back_.drop(one_use);
      back_.use(index);
    }
  }
  void norm_gradients(const std::string& name) {
    accumulate(name + ".weight", false);
    accumulate(name + ".bias", false);
  }

  const WorkRequest& r_;
  const MemorySizes& z_;
  Work work_;
  Tape forward_, back_;
};

class LayerWriter : public Writer {
 public:
  LayerWriter(const WorkRequest& request, bool top_query)
      : Writer(request),
        top_query_(top_query),
        prefix_(top_query ? "decoder.top_query_layer." : ""),
        residual_(top_query ? z_.element : z_.residual) {
    const config::Model& m = request.config->model;
    q_ = tokens(z_.n * z_.d, z_.element);
    k_ = tokens(z_.g * z_.d, z_.element);
    fused_ = (top_query ? 0 : q_) + 2 * k_;
    copies_ = !top_query && z_.n > z_.g;
    scores_ = m.attention_dropout > 0 ? tokens(z_.n * z_.s, z_.wide) : 0;
    x_ = tokens(z_.f * (m.gated_linear_unit ? 2 : 1), z_.element);
    y_ = tokens(z_.f, z_.element);
    drops_ = m.hidden_dropout > 0;
    forward();
    backward();
  }

 private:
  void forward();
  void backward();
  void core_forward(Tape& tape);
  void mlp_backward();
  void attention_backward();
  void core_backward();
  Held column_backward(Held& dy, Held& input, const std::string& name, bool adds_bias);
  int64_t statistics(int64_t number) const { return number * z_.moments * z_.wide; }
  // The plain attention works in the wide type; queries of several heads a group are copied for it in any.
  int64_t wide_copies(int64_t all, int64_t queries) const {
    if (scores_ == 0) return 0;
    return half() ? all * (z_.wide / z_.element) : copies_ ? queries : 0;
  }
  // The sum over the tensor-parallel ranks: scattered with sequence parallelism, else in place.
  Held reduced(Held whole) {
    if (!splits()) return whole;
    const Held part = forward_.make(rows(z_.h, z_.element));
    forward_.drop(whole);
    return part;
  }

  bool top_query_;
  std::string prefix_;
  int64_t residual_, q_, k_, fused_, scores_, x_, y_;
  bool copies_, drops_;
  // Saved from forward to backward.
  Held first_statistics_, normed_, projected_, normed_q_, qk_statistics_, core_, core_statistics_, sum_,
      second_statistics_, second_normed_, in_activation_, activated_;
  Held top_normed_, top_statistics_, top_queries_;
  // Of backward: gradients on their way.
  Held of_sum_, of_residual_;
};

// Samples first, then the sequence first. With dropout on the probabilities they and what is left of them, wide.
void LayerWriter::core_forward(Tape& t) {
  Held wide = t.make(wide_copies(q_ + 2 * k_, q_));
  core_statistics_ = t.make(scores_ > 0 ? scores_ : tokens(z_.n, z_.wide));
  Held dropped = t.make(scores_), out = t.make(scores_ > 0 ? tokens(z_.n * z_.d, z_.wide) : q_);
  t.drop(wide, dropped);
  if (scores_ > 0 && half()) {
    Held narrow = t.make(q_);
    t.drop(out);
    out = narrow;
  }
  core_ = t.make(q_);
  t.drop(out);
}

void LayerWriter::forward() {
  Tape& t = forward_;
  if (top_query_) {
    top_normed_ = t.make(rows(z_.h, z_.element));
    top_statistics_ = t.make(statistics(z_.rows));
    top_queries_ = t.make(rows(z_.h, z_.element));
  }
  normed_ = t.make(rows(z_.h, z_.element));
  first_statistics_ = t.make(statistics(z_.rows));
  Held whole = t.make(gathered());
  projected_ = t.make(fused_);
  t.drop(whole);
  if (top_query_) {
    whole = t.make(gathered());
    projected_.bytes += t.make(q_).bytes;
    t.drop(whole);
  }
  Held cut_from;
  if (copies_) {
    cut_from = projected_;
    projected_ = t.make(z_.g == 1 ? 2 * k_ : fused_);
  }
  if (r_.config->model.qk_layernorm) {
    normed_q_ = t.make(q_ + k_);
    qk_statistics_ = t.make(statistics(z_.tokens * (z_.n + z_.g)));
  }
  core_forward(t);
  Held attended = reduced(t.make(tokens(z_.h, z_.element)));
  if (z_.g == 1) {
    projected_.bytes += cut_from.bytes;
  } else {
    t.drop(cut_from);
  }
  if (remakes("layernorm")) t.drop(normed_);
  if (remakes("core_attn")) t.drop(core_, core_statistics_, normed_q_);
  const bool converts = residual_ != z_.element;  // sums in place where the types agree
  sum_ = converts ? t.make(rows(z_.h, residual_)) : attended;
  second_normed_ = t.make(rows(z_.h, z_.element));
  second_statistics_ = t.make(statistics(z_.rows));
  whole = t.make(gathered());
  in_activation_ = t.make(x_);
  t.drop(whole);
  activated_ = t.make(y_);
  Held out = reduced(t.make(tokens(z_.h, z_.element)));
  if (converts) {
    t.make(rows(z_.h, residual_));
    t.drop(out, attended);
  }
  if (remakes("layernorm")) t.drop(second_normed_);
  if (remakes("mlp")) t.drop(in_activation_);
  if (remakes("mlp") || remakes("activation")) t.drop(activated_);
}

void LayerWriter::backward() {
  mlp_backward();
  attention_backward();
  if (top_query_) {  // the input norm's gradient joins the residual's, then the final norm
    Held dx = back_.make(rows(z_.h, z_.residual));
    norm_gradients("final_layernorm");
    Held input{rows(z_.h, z_.residual)};
    back_.drop(of_residual_, top_normed_, top_statistics_, input);
    of_residual_ = dx;
  }
}

// y = x w: the gradient of x (scattered again with sequence parallelism), then that of w. `input` is x, or nothing
// where a norm makes it again.
Held LayerWriter::column_backward(Held& dy, Held& input, const std::string& name, bool adds_bias) {
  Tape& t = back_;
  if (input.bytes == 0) input = t.make(rows(z_.h, z_.element));
  Held whole = t.make(gathered()), dx = t.make(tokens(z_.h, z_.element));
  Held scattered = splits() ? t.make(rows(z_.h, z_.element)) : Held{};
  accumulate(prefix_ + name + ".weight", true);
  if (adds_bias) accumulate(prefix_ + name + ".bias", false);
  t.drop(whole, dy, input);
  if (splits()) t.drop(dx);
  return splits() ? scattered : dx;
}

void LayerWriter::mlp_backward() {
  Tape& t = back_;
  Held dy = t.make(drops_ || residual_ != z_.element ? rows(z_.h, z_.element) : 0);
  accumulate(prefix_ + "mlp.linear_fc2.bias", false);
  Held whole = t.make(gathered()), of_activated = t.make(y_);
  if (remakes("mlp")) {
    if (remakes("layernorm")) second_normed_ = t.make(rows(z_.h, z_.element));
    Held gathered_again = t.make(gathered());
    in_activation_ = t.make(x_);
    t.drop(gathered_again);
  }
  if (remakes("mlp") || remakes("activation")) activated_ = t.make(y_);
  accumulate(prefix_ + "mlp.linear_fc2.weight", true);
  t.drop(whole, dy, activated_);
  Held of_x = t.make(x_);
  accumulate(prefix_ + "mlp.linear_fc1.bias", false);
  t.drop(of_activated, in_activation_);
  Held dx = column_backward(of_x, second_normed_, "mlp.linear_fc1", false);
  of_residual_ = t.make(rows(z_.h, residual_));
  if (drops_ || residual_ != z_.element) of_sum_ = t.make(rows(z_.h, z_.element));
  norm_gradients(prefix_ + "pre_mlp_layernorm");
  accumulate(prefix_ + "self_attention.linear_proj.bias", false);
  t.drop(dx, sum_, second_statistics_);
}

void LayerWriter::core_backward() {
  Tape& t = back_;
  const int64_t wide = z_.wide / z_.element;
  Held d = t.make(q_ + 2 * k_);
  if (scores_ > 0) {
    t.drop(d);
    Held copies = t.make(wide_copies(2 * q_ + 2 * k_, 2 * q_));
    Held of_scores = t.make(3 * scores_);  // the dropped probabilities, their gradient, that of the scores
    Held made = t.make((q_ + 2 * k_) * wide);
    if (half()) d = t.make(q_ + 2 * k_);
    t.drop(of_scores, copies);
    if (half()) {
      t.drop(made);
    } else {
      d = made;
    }
  }
  if (r_.config->model.qk_layernorm) {
    Held raw = t.make(q_);
    norm_gradients("q_layernorm");
    t.drop(raw);
    raw = t.make(k_);
    norm_gradients("k_layernorm");
    t.drop(raw);
  }
  t.make(fused_);
  t.drop(d);
}

void LayerWriter::attention_backward() {
  Tape& t = back_;
  Held whole = t.make(gathered()), of_core = t.make(q_);
  if (remakes("core_attn")) {
    if (r_.config->model.qk_layernorm) normed_q_ = t.make(q_ + k_);
    core_forward(t);
  }
  accumulate(prefix_ + "self_attention.linear_proj.weight", true);
  t.drop(whole, of_sum_);
  if (scores_ > 0 && !remakes("core_attn")) t.drop(core_);  // its backward reads the probabilities
  core_backward();
  Held of_fused{fused_}, of_query = top_query_ ? of_core : Held{};
  if (!top_query_) t.drop(of_core);
  t.drop(projected_, normed_q_, qk_statistics_, core_, core_statistics_);
  Held of_normed =
      column_backward(of_fused, normed_, top_query_ ? "self_attention.linear_kv" : "self_attention.linear_qkv", true);
  if (top_query_) {
    Held of_queries = column_backward(of_query, top_queries_, "self_attention.linear_q", true);
    accumulate("top_query_embeddings.weight", false);
    t.drop(of_queries);
  }
  Held dx = t.make(rows(z_.h, residual_));
  norm_gradients(prefix_ + "input_layernorm");
  t.drop(of_normed, first_statistics_);
  // The input goes with its norm; its two gradients become one.
  Held input{rows(z_.h, residual_)};
  if (!top_query_) t.drop(input);
  t.drop(dx);
}

class EmbeddingWriter : public Writer {
 public:
  explicit EmbeddingWriter(const WorkRequest& request) : Writer(request) {
    Held out = forward_.make(tokens(z_.h, z_.element));
    if (splits() || z_.residual != z_.element) {
      forward_.make(rows(z_.h, z_.residual));
      forward_.drop(out);
    }
    Held dropped = back_.make(request.config->model.hidden_dropout > 0 ? rows(z_.h, z_.residual) : 0);
    Held whole = back_.make(splits() ? tokens(z_.h, z_.residual) : 0);
    accumulate("word_embeddings.weight", false);
    back_.drop(whole);
    accumulate("position_embeddings.weight", false);
    accumulate("tokentype_embeddings.weight", false);
    back_.drop(dropped);
  }
};

class HeadWriter : public Writer {
 public:
  HeadWriter(const WorkRequest& request, bool final_norm) : Writer(request) {
    const int64_t in = rows(z_.h, final_norm ? z_.residual : z_.element);
    Held normed = forward_.make(final_norm ? rows(z_.h, z_.element) : 0);
    Held statistics = forward_.make(final_norm ? z_.rows * z_.moments * z_.wide : 0);
    Held whole = forward_.make(gathered());
    Held logits = forward_.make(tokens(z_.vocab, z_.element));
    forward_.drop(whole);
    if (final_norm && remakes("layernorm")) forward_.drop(normed);
    Held rows_of_loss = forward_.make(z_.tokens * (z_.wide + 8));
    forward_.touch(z_.tokens * (6 * z_.wide + 8));  // statistics of the rows, their loss, labels in rows

    if (final_norm && remakes("layernorm")) normed = back_.make(rows(z_.h, z_.element));
    whole = back_.make(gathered());
    Held dx = back_.make(tokens(z_.h, z_.element)), scattered = back_.make(splits() ? rows(z_.h, z_.element) : 0);
    accumulate(request.config->model.tied() ? "word_embeddings.weight" : "output_layer.weight", true);
    back_.drop(whole, logits, rows_of_loss, normed);
    if (splits()) {
      back_.drop(dx);
      dx = scattered;
    }
    Held input{in};
    if (!final_norm) {
      back_.drop(input);
      return;
    }
    back_.make(in);
    norm_gradients("final_layernorm");
    back_.drop(dx, statistics, input);
  }
};

}  // namespace

Work embedding_work(const WorkRequest& request) { return EmbeddingWriter(request).take(); }
Work layer_work(const WorkRequest& request) { return LayerWriter(request, false).take(); }
Work top_query_work(const WorkRequest& request) { return LayerWriter(request, true).take(); }
Work head_work(const WorkRequest& request, bool final_norm) { return HeadWriter(request, final_norm).take(); }

}  // namespace metroplex::plan
