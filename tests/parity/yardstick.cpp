#include "parity/yardstick.h"

#include <ATen/ATen.h>

#include <cmath>

namespace metroplex::parity {
namespace {

using Json = nlohmann::json;

class Sum {
 public:
  void add(double ours, double recorded, double exact) {
    ours_ += (ours - recorded) * (ours - recorded);
    theirs_ += (recorded - exact) * (recorded - exact);
    exact_ += (ours - exact) * (ours - exact);
    ++count_;
  }
  Distance distance(const std::string& what) const {
    const auto n = static_cast<double>(std::max<int64_t>(1, count_));
    return {what, std::sqrt(ours_ / n), std::sqrt(theirs_ / n), std::sqrt(exact_ / n), count_};
  }

 private:
  double ours_ = 0, theirs_ = 0, exact_ = 0;
  int64_t count_ = 0;
};

void add_tensors(std::vector<Distance>& all, const std::string& what, const Json& recorded,
                 const std::map<std::string, at::Tensor>& ours, const std::map<std::string, at::Tensor>& exact) {
  for (const auto& [name, values] : recorded.items()) {
    const at::Tensor a = ours.at(name).flatten(), b = exact.at(name).flatten();
    Sum elements, sum, l2;
    const auto first = values.value("first", std::vector<double>{}),
               last = values.value("last", std::vector<double>{});
    for (size_t i = 0; i < first.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      elements.add(a[at].item<double>(), first[i], b[at].item<double>());
    }
    for (size_t i = 0; i < last.size(); ++i) {
      const int64_t at = a.numel() - static_cast<int64_t>(last.size()) + static_cast<int64_t>(i);
      elements.add(a[at].item<double>(), last[i], b[at].item<double>());
    }
    const double n = std::sqrt(static_cast<double>(a.numel()));
    sum.add(a.sum().item<double>() / n, values.at("sum").get<double>() / n, b.sum().item<double>() / n);
    l2.add(a.norm().item<double>() / n, values.at("l2").get<double>() / n, b.norm().item<double>() / n);
    all.push_back(elements.distance(what + " E " + name));
    all.push_back(sum.distance(what + " S " + name));
    all.push_back(l2.distance(what + " L " + name));
  }
}

}  // namespace

std::vector<Distance> distances(const Json& recorded, const Trajectory& ours, const Trajectory& exact) {
  std::vector<Distance> all;
  Sum losses, norms;
  for (size_t i = 0; i < ours.steps.size(); ++i) {
    const Json& line = recorded.at("history").at(i);
    losses.add(ours.steps[i].loss, line.at("loss"), exact.steps[i].loss);
    if (line.contains("grad_norm") && line.at("grad_norm").is_number() && exact.steps[i].updated)
      norms.add(ours.steps[i].grad_norm, line.at("grad_norm"), exact.steps[i].grad_norm);
  }
  all.push_back(losses.distance("losses"));
  all.push_back(norms.distance("norms"));
  if (recorded.contains("grads_iter1") && recorded.at("grads_iter1").is_object() && !ours.gradients.empty())
    add_tensors(all, "G", recorded.at("grads_iter1"), ours.gradients, exact.gradients);
  add_tensors(all, "P", recorded.at("final_params"), ours.parameters, exact.parameters);
  return all;
}

}  // namespace metroplex::parity
