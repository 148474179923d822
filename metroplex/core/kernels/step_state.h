// Device-side state and decisions of a training step: loss scale, overflow, skipping, clipping, learning rates. Small
// kernels are enqueued like all others, and the host reads the result after the step. All numbers are doubles, so
// that one tensor holds a struct; counts are exact. No addition follows a multiplication, so no compiler can fuse
// them, and CPU and GPU give the same bits.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace metroplex::kernels {

struct StepValues {
  // State across steps; checkpoints save these four.
  double steps = 0;       // number of steps with an update
  double loss_scale = 1;  // representable in float
  double growth_tracker = 0, hysteresis_tracker = 0;
  // Decision of the latest step; all updates read it.
  double updates = 0;      // 1, or 0: the step must not change any state
  double number = 1;       // number of this update, from 1
  double grad_factor = 1;  // factor of every gradient: unscaling and clipping
};

// Rates of one parameter group in one update.
struct GroupRates {
  double lr = 0, weight_decay = 0;
  double keep = 1;       // 1 - lr weight_decay
  double step_size = 0;  // AdamW's lr / (1 - beta1^number)
  double unbias = 1;     // AdamW's 1 / sqrt(1 - beta2^number)
};
// Runs on the host only, because pow() differs between machines.
GroupRates group_rates(double lr, double weight_decay, double beta1, double beta2, int64_t number);

struct StepPlace {
  const StepValues* values = nullptr;
  const GroupRates* rates = nullptr;  // for the parameter group
};

// Rate table of the next successful steps: `first` (the number of steps before the first row), then `rows` rows. A
// row has the schedule's lr and the GroupRates of every group.
constexpr int64_t kRatesOfGroup = sizeof(GroupRates) / sizeof(double);
constexpr int64_t rate_row(int64_t groups) { return 1 + groups * kRatesOfGroup; }

// Flags that layers set during a step, int32 each, nonzero: set. The host clears them. Losses and gradients need no
// flags: non-finite values are counted in their sums (StepSums::bad_losses, JudgePlace::numbers).
enum StepFlag {
  kOverflow,  // a row buffer was too small: the step is repeated, and no state may change
  kStepFlags
};

// Sums over all ranks; the loss terms' sums follow.
struct StepSums {
  double loss = 0, weight = 0, tokens = 0;
  double stop = 0;        // ranks with a stop request
  double bad_losses = 0;  // non-finite losses
  double overflows = 0;   // ranks with kOverflow set
};

struct StepVerdict {
  double loss_scale = 1, unscale = 1;    // used by the step
  double grad_norm = 0;                  // unscaled, before clipping
  double num_zeros = 0, num_bad = 0;     // elements of gradients; bad: non-finite
  double found_inf = 0, over_limit = 0;  // non-finite gradients; norm above the threshold
  double updates = 0, lr = 0;
  double steps = 0;  // successful steps, including this one
  double row = 0;    // row index in the rate table
};

// Returns 1 / scale, rounded once to float32.
constexpr double inverse_of(double loss_scale) { return static_cast<float>(1.0 / loss_scale); }
// Returns the factor that turns gradient sums into means and removes the loss scale. Gradients are sums over the
// data-parallel ranks of the dense grid; expert gradients also contain the tokens of all sending ranks. The mean is
// over `ranks`, or over tokens if `per_token`.
constexpr double unscale_of(bool per_token, double tokens, double ranks, double loss_scale) {
  return 1.0 / (per_token ? (tokens < 1.0 ? 1.0 : tokens) : ranks) * inverse_of(loss_scale);
}

// Factor of each microbatch's summed loss in the step loss, which averages per-microbatch means. With `per_token`
// the factor is 1; the division by all tokens follows after they are counted. Ranks that hold `parts` of a
// sequence together contribute its mean, but are averaged like other ranks.
struct LossFactorShape {
  int64_t microbatches = 0, parts = 1;
  bool per_token = false;
  int64_t averaged = 0;  // number of averaged means; 0: one per microbatch
};
void loss_factors(const StepValues* values, const double* tokens, double* factors, const LossFactorShape& shape);

// This rank's contribution to the sums. Losses and terms are sums over a microbatch.
struct OwnLosses {
  int64_t microbatches = 0;
  const double* losses = nullptr;  // [microbatches]; null except on the last stage
  const double* tokens = nullptr;  // [microbatches], of whole sequences
  const double* stop = nullptr;
  int64_t reported = 0;             // number of loss terms per microbatch
  const double* reports = nullptr;  // [microbatches, reported]
  const int64_t* terms = nullptr;   // [reported]: indices of the terms; an invalid index makes all terms NaN
  bool per_token = false;
  bool counts_losses = false, counts_tokens = false, counts_terms = false;
  const int32_t* flags = nullptr;  // [kStepFlags]
  const double* counts = nullptr;  // [microbatches]: 0 if another rank counts the tokens; null: all 1
};
struct SumsPlace {
  StepSums* sums = nullptr;
  double* terms = nullptr;
  int64_t num_terms = 0;
  double* losses = nullptr;  // [microbatches]: this rank's losses, or 0
};
void own_sums(const OwnLosses& own, const SumsPlace& place);

// Update rule of the loss scale (optim/grad_scaler.h).
struct ScaleRule {
  bool scales = false, dynamic = false;
  float min_scale = 1, growth_factor = 2, backoff_factor = 0.5F;
  int64_t growth_interval = 1000, hysteresis = 2;
};
struct StepRules {
  ScaleRule scale;
  bool per_token = false;
  double ranks = 1;                                            // dp * cp
  bool holds_bad_losses = false, holds_bad_gradients = false;  // skip the step; only without a loss scale
  double max_norm = 0;                                         // for clipping; 0: off
  double skip_threshold = 0;                                   // limit of the gradient norm
  int64_t groups = 0, rows = 0;
};
struct JudgePlace {
  StepValues* values = nullptr;
  GroupRates* rates = nullptr;      // [groups]: output, rates of this update from the table
  const double* table = nullptr;    // see rate_row
  const StepSums* sums = nullptr;   // summed over all ranks
  const double* numbers = nullptr;  // [3] over all ranks: sum of squares, non-finite elements, zeros
  StepVerdict* verdict = nullptr;
};
void judge_step(const StepRules& rules, const JudgePlace& place);

// Copies `bytes` if the step updates, or, with `when` false, if it does not. Pointers are 4-byte aligned.
void copy_if_updates(const StepValues* values, bool when, const void* from, void* to, int64_t bytes);

// GPU versions, enqueued on `stream`; all pointers are device pointers. They throw base::Error("cuda", ...) if the
// launch fails.
void loss_factors_cuda(const StepValues* values, const double* tokens, double* factors, const LossFactorShape& shape,
                       CUstream_st* stream);
void own_sums_cuda(const OwnLosses& own, const SumsPlace& place, CUstream_st* stream);
void judge_step_cuda(const StepRules& rules, const JudgePlace& place, CUstream_st* stream);
void copy_if_updates_cuda(const StepValues* values, bool when, const void* from, void* to, int64_t bytes,
                          CUstream_st* stream);

}  // namespace metroplex::kernels
