// The kernels of step_state.h for one thread of CPU or GPU.
#pragma once

#include "kernels/step_state.h"
#include "kernels/vector_math.h"

namespace metroplex::kernels {

constexpr MPX_INLINE bool is_finite(double x) { return x - x == 0; }
constexpr MPX_INLINE double at_least_one(double x) { return x < 1.0 ? 1.0 : x; }
constexpr MPX_INLINE double mean_of(double sum, double tokens, bool per_token) {
  return per_token ? sum : sum / at_least_one(tokens);
}

constexpr MPX_INLINE double loss_factor(double loss_scale, double tokens, const LossFactorShape& shape) {
  const int64_t averaged = shape.averaged > 0 ? shape.averaged : shape.microbatches;
  const double mean = static_cast<double>(shape.parts) / (at_least_one(tokens) * static_cast<double>(averaged));
  return loss_scale * (shape.per_token ? 1.0 : mean);
}

// Indices read from the device are checked against the number of terms.
constexpr MPX_INLINE void add_terms(const OwnLosses& own, const SumsPlace& place) {
  for (int64_t i = 0; i < own.reported; ++i) {
    if (own.terms[i] >= 0 && own.terms[i] < place.num_terms) continue;
    for (int64_t t = 0; t < place.num_terms; ++t) place.terms[t] = __builtin_nan("");
    return;
  }
  for (int64_t m = 0; m < own.microbatches; ++m) {
    for (int64_t i = 0; i < own.reported; ++i)
      place.terms[own.terms[i]] += mean_of(own.reports[m * own.reported + i], own.tokens[m], own.per_token);
  }
}

// Sums in order of microbatches.
constexpr MPX_INLINE void add_own(const OwnLosses& own, const SumsPlace& place) {
  StepSums sums;
  sums.stop = *own.stop;
  sums.overflows = own.flags[kOverflow] != 0 ? 1 : 0;
  for (int64_t m = 0; m < own.microbatches; ++m) {
    place.losses[m] = own.losses == nullptr ? 0.0 : own.losses[m];
    if (own.losses == nullptr) continue;
    sums.bad_losses += is_finite(own.losses[m]) ? 0 : 1;
    if (own.counts_losses) sums.loss += mean_of(own.losses[m], own.tokens[m], own.per_token);
    if (!own.counts_tokens || (own.counts != nullptr && own.counts[m] == 0)) continue;
    sums.tokens += own.tokens[m];
    sums.weight += own.per_token ? own.tokens[m] : 1.0;
  }
  *place.sums = sums;
  for (int64_t t = 0; t < place.num_terms; ++t) place.terms[t] = 0;
  if (own.counts_terms) add_terms(own, place);
}

// Uses float32 like Megatron-LM (core/optimizer/grad_scaler.py), so that histories are bitwise reproducible.
constexpr MPX_INLINE void move_scale(const ScaleRule& rule, bool found_inf, StepValues& values) {
  if (!rule.dynamic) return;
  const auto scale = static_cast<float>(values.loss_scale);
  if (found_inf) {
    values.growth_tracker = 0;
    values.hysteresis_tracker -= 1;
    if (values.hysteresis_tracker > 0) return;
    const float cut = scale * rule.backoff_factor;
    values.loss_scale = cut < rule.min_scale ? rule.min_scale : cut;
    return;
  }
  values.growth_tracker += 1;
  if (values.growth_tracker < static_cast<double>(rule.growth_interval)) return;
  values.growth_tracker = 0;
  values.hysteresis_tracker = static_cast<double>(rule.hysteresis);
  const float grown = scale * rule.growth_factor;
  if (is_finite(grown)) values.loss_scale = grown;
}

// max_norm / (norm + 1e-6) if that is below 1, else 1 (Megatron's clip_grad_by_total_norm).
constexpr MPX_INLINE double clip_factor(double norm, double max_norm) {
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient < 1.0 ? coefficient : 1.0;
}

// Uses the table row of the current step, clamped to the table. The host detects rows outside it from
// StepVerdict::row.
constexpr MPX_INLINE void take_rates(const StepRules& rules, const JudgePlace& place, double steps,
                                     StepVerdict& out) {
  out.row = steps - place.table[0];
  const double last = static_cast<double>(rules.rows - 1),
               inside = out.row < 0 ? 0 : (out.row > last ? last : out.row);
  const double* row = place.table + 1 + static_cast<int64_t>(inside) * rate_row(rules.groups);
  out.lr = *row++;
  for (int64_t g = 0; g < rules.groups; ++g, row += kRatesOfGroup)
    place.rates[g] = {row[0], row[1], row[2], row[3], row[4]};
}

constexpr MPX_INLINE void judge(const StepRules& rules, const JudgePlace& place, double norm) {
  StepValues values = *place.values;
  StepVerdict out;
  out.loss_scale = values.loss_scale;
  out.unscale = unscale_of(rules.per_token, place.sums->tokens, rules.ranks, values.loss_scale);
  out.grad_norm = norm * out.unscale;
  out.num_bad = place.numbers[1];
  out.num_zeros = place.numbers[2];
  const bool overflows = place.sums->overflows > 0;
  const bool found_inf = !overflows && (out.num_bad > 0 || !is_finite(norm));
  const bool over_limit = !overflows && !found_inf && out.grad_norm > rules.skip_threshold;
  const bool held = overflows || (rules.holds_bad_losses && place.sums->bad_losses > 0) ||
                    (found_inf && (rules.scale.scales || rules.holds_bad_gradients)) || over_limit;
  out.found_inf = found_inf ? 1 : 0;
  out.over_limit = over_limit ? 1 : 0;
  take_rates(rules, place, values.steps, out);
  values.updates = out.updates = held ? 0 : 1;
  values.number = values.steps + 1;
  values.grad_factor = (rules.max_norm > 0 ? clip_factor(out.grad_norm, rules.max_norm) : 1.0) * out.unscale;
  values.steps += values.updates;
  out.steps = values.steps;
  if (!overflows) move_scale(rules.scale, found_inf, values);
  *place.values = values;
  *place.verdict = out;
}

}  // namespace metroplex::kernels
