// What a training step decides about itself, where the parameters lie: loss scale, overflow, skipping, clipping,
// rates. Small kernels, enqueued like all others; the host reads the outcome when the step is over. All numbers
// are doubles, so that one tensor holds a struct of them; counts are exact. No sum follows a product: nothing that a
// compiler could contract, so the CPU and a GPU give the same bits.
#pragma once

#include <cstdint>

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

struct StepValues {
  // From one step to the next; checkpoints keep these four.
  double steps = 0;       // that updated
  double loss_scale = 1;  // a float
  double growth_tracker = 0, hysteresis_tracker = 0;
  // Of the step that was judged last. What is updated reads them.
  double updates = 0;      // 1, or 0: nothing may change
  double number = 1;       // of this update, from 1
  double grad_factor = 1;  // every gradient is multiplied by it first: unscaling and clipping
};

// Rates of one parameter group at one update.
struct GroupRates {
  double lr = 0, weight_decay = 0;
  double keep = 1;       // 1 - lr weight_decay
  double step_size = 0;  // AdamW's lr / (1 - beta1^number)
  double unbias = 1;     // and its 1 / sqrt(1 - beta2^number)
};
// On the host alone: no two machines raise to a power alike.
GroupRates group_rates(double lr, double weight_decay, double beta1, double beta2, int64_t number);

// Where an update finds them.
struct StepPlace {
  const StepValues* values = nullptr;
  const GroupRates* rates = nullptr;  // of the group
};

// The rates of the next successful steps: `first`, the number of steps that the first row follows, then `rows` rows
// of the schedule's lr and the GroupRates of every group.
constexpr int64_t kRatesOfGroup = sizeof(GroupRates) / sizeof(double);
constexpr int64_t rate_row(int64_t groups) { return 1 + groups * kRatesOfGroup; }

// What layers find while they run, int32 each, not 0: raised. The host lowers them. Losses and gradients need none:
// they are counted where they are summed (StepSums::bad_losses, JudgePlace::numbers).
enum StepFlag {
  kOverflow,  // rows found no room in a buffer, so the step must be taken again: nothing may change, no loss scale
              // either
  kStepFlags
};

// Sums over all ranks; those of the loss terms follow.
struct StepSums {
  double loss = 0, weight = 0, tokens = 0;
  double stop = 0;        // ranks that were asked to end
  double bad_losses = 0;  // that are not finite
  double overflows = 0;   // ranks that raised kOverflow
};

struct StepVerdict {
  double loss_scale = 1, unscale = 1;    // that the step used
  double grad_norm = 0;                  // unscaled, before clipping
  double num_zeros = 0, num_bad = 0;     // elements of gradients; bad: not finite
  double found_inf = 0, over_limit = 0;  // gradients that are not finite; a norm above the threshold
  double updates = 0, lr = 0;
  double steps = 0;  // successful ones, this one counted
  double row = 0;    // of the table
};

// 1 / scale, rounded once to float32.
constexpr double inverse_of(double loss_scale) { return static_cast<float>(1.0 / loss_scale); }
// Gradients are sums over the data-parallel ranks of the dense grid, those of experts too: they hold the tokens of
// all ranks that send to them. What makes their mean over `ranks` of it, or per token that over the tokens, and takes
// the loss scale out.
constexpr double unscale_of(bool per_token, double tokens, double ranks, double loss_scale) {
  return 1.0 / (per_token ? (tokens < 1.0 ? 1.0 : tokens) : ranks) * inverse_of(loss_scale);
}

// Factors of each microbatch's summed loss in the loss of the step: per-microbatch means, averaged; or, per token, 1
// (the division by all tokens follows when they have been counted). Ranks that hold `parts` of a sequence add up to
// its mean, but are averaged over with the others.
struct LossFactorShape {
  int64_t microbatches = 0, parts = 1;
  bool per_token = false;
  int64_t averaged = 0;  // means that are averaged; 0: one for each microbatch
};
void loss_factors(const StepValues* values, const double* tokens, double* factors, const LossFactorShape& shape);

// What this rank adds to the sums. Losses and terms are sums over a microbatch.
struct OwnLosses {
  int64_t microbatches = 0;
  const double* losses = nullptr;  // [microbatches]; null on other than the last stage
  const double* tokens = nullptr;  // [microbatches], of whole sequences
  const double* stop = nullptr;
  int64_t reported = 0;             // loss terms of each microbatch
  const double* reports = nullptr;  // [microbatches, reported]
  const int64_t* terms = nullptr;   // [reported]: which they are; one that there is not makes them all NaN
  bool per_token = false;
  bool counts_losses = false, counts_tokens = false, counts_terms = false;
  const int32_t* flags = nullptr;  // [kStepFlags]
  const double* counts = nullptr;  // [microbatches]: 0 where another rank counts these tokens; null: nowhere
};
struct SumsPlace {
  StepSums* sums = nullptr;
  double* terms = nullptr;
  int64_t num_terms = 0;
  double* losses = nullptr;  // [microbatches]: this rank's, 0 without any
};
void own_sums(const OwnLosses& own, const SumsPlace& place);

// How the loss scale moves (optim/grad_scaler.h).
struct ScaleRule {
  bool scales = false, dynamic = false;
  float min_scale = 1, growth_factor = 2, backoff_factor = 0.5F;
  int64_t growth_interval = 1000, hysteresis = 2;
};
struct StepRules {
  ScaleRule scale;
  bool per_token = false;
  double ranks = 1;                                            // of dp and cp
  bool holds_bad_losses = false, holds_bad_gradients = false;  // without a loss scale
  double max_norm = 0;                                         // clipping; 0: none
  double skip_threshold = 0;                                   // of the gradient norm
  int64_t groups = 0, rows = 0;
};
struct JudgePlace {
  StepValues* values = nullptr;
  GroupRates* rates = nullptr;      // [groups]: of this update, from the table
  const double* table = nullptr;    // see rate_row
  const StepSums* sums = nullptr;   // over all ranks
  const double* numbers = nullptr;  // [3] over all ranks: sum of squares, elements not finite, zeros
  StepVerdict* verdict = nullptr;
};
void judge_step(const StepRules& rules, const JudgePlace& place);

// Copies `bytes` where the step updates, or, with `when` false, where it does not. Pointers are multiples of 4.
void copy_if_updates(const StepValues* values, bool when, const void* from, void* to, int64_t bytes);

// The same on a GPU, enqueued on `stream`; all pointers are of the device. base::Error("cuda", ...) when nothing was
// launched.
void loss_factors_cuda(const StepValues* values, const double* tokens, double* factors, const LossFactorShape& shape,
                       CUstream_st* stream);
void own_sums_cuda(const OwnLosses& own, const SumsPlace& place, CUstream_st* stream);
void judge_step_cuda(const StepRules& rules, const JudgePlace& place, CUstream_st* stream);
void copy_if_updates_cuda(const StepValues* values, bool when, const void* from, void* to, int64_t bytes,
                          CUstream_st* stream);

}  // namespace metroplex::cuda::kernels
