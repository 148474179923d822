#include "step/loss_terms.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "base/error.h"
#include "comm/collectives.h"
#include "device/launch_point.h"

namespace metroplex::step {

void LossTermNames::agree(const std::vector<nn::LossTerms>& terms, const comm::Group& world) {
  if (agreed_) return;
  std::set<std::string> all;
  for (const nn::LossTerms& of_microbatch : terms) {
    for (const nn::LossTerm& term : of_microbatch) all.insert(term.name);
  }
  std::string mine;
  for (const std::string& name : all) mine += name + '\n';
  for (const std::string& text : comm::all_gather_strings(mine, world)) {
    std::istringstream lines(text);
    for (std::string name; std::getline(lines, name);) all.insert(name);
  }
  names_.assign(all.begin(), all.end());
  agreed_ = true;
}

namespace {

std::vector<std::string> term_names(const nn::LossTerms& terms) {
  std::vector<std::string> names;
  for (const nn::LossTerm& term : terms) names.push_back(term.name);
  return names;
}

}  // namespace

void LossTermNames::write_numbers(const device::Target& target) {
  std::vector<int64_t> numbers;
  for (const std::string& name : reported_) {
    const auto found = std::lower_bound(names_.begin(), names_.end(), name);
    MPX_ASSERT(found != names_.end() && *found == name, "the loss term ", name,
               " was not reported in the first step, where the ranks agreed on the terms");
    numbers.push_back(found - names_.begin());
  }
  const at::Tensor host = at::tensor(numbers, at::kLong);
  on_device_ = at::empty(host.sizes(), at::TensorOptions().dtype(at::kLong).device(target.memory()));
  device::write_from_host(target, on_device_, host);
}

ReportedTerms LossTermNames::of(const std::vector<nn::LossTerms>& terms, const device::Target& target) {
  std::vector<at::Tensor> sums;
  for (const nn::LossTerms& of_microbatch : terms) {
    for (const nn::LossTerm& term : of_microbatch) sums.push_back(term.sum.to(at::kDouble));
  }
  if (sums.empty()) return {};
  if (!on_device_.defined()) {
    reported_ = term_names(terms.front());
    write_numbers(target);
  }
  for (const nn::LossTerms& of_microbatch : terms) {
    MPX_ASSERT(term_names(of_microbatch) == reported_, "a microbatch reports ", of_microbatch.size(),
               " loss terms, or in another order, than the first one of this rank, which reported ",
               reported_.size());
  }
  return {at::stack(sums), on_device_};
}

}  // namespace metroplex::step
