#include "train/loss_terms.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "base/error.h"
#include "comm/collectives.h"
#include "cuda/host_read.h"

namespace metroplex::train {

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

ReportedTerms LossTermNames::of(const std::vector<nn::LossTerms>& terms, const cuda::Target& target) {
  std::vector<at::Tensor> sums;
  std::vector<int64_t> places;
  for (size_t m = 0; m < terms.size(); ++m) {
    for (const nn::LossTerm& term : terms[m]) {
      const auto found = std::lower_bound(names_.begin(), names_.end(), term.name);
      MPX_ASSERT(found != names_.end() && *found == term.name, "the loss term ", term.name,
                 " was not reported in the first step, where the ranks agreed on what there is");
      places.insert(places.end(), {found - names_.begin(), static_cast<int64_t>(m)});
      sums.push_back(term.sum.to(at::kDouble));
    }
  }
  if (sums.empty()) return {};
  if (places != places_) {
    const at::Tensor host = at::tensor(places, at::kLong).view({-1, 2});
    on_device_ = at::empty(host.sizes(), at::TensorOptions().dtype(at::kLong).device(target.memory()));
    cuda::write_from_host(target, on_device_, host);
    places_ = std::move(places);
  }
  return {at::stack(sums), on_device_};
}

}  // namespace metroplex::train
