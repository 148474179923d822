#include "comm/backends/gloo_state.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "comm/network.h"

namespace metroplex::comm {
namespace {

// Time that a lost connection waits for a cause that may still be in transit through the tree.
constexpr auto kCauseDelay = std::chrono::milliseconds(300);

}  // namespace

int GroupNumbers::of(const GroupSpec& spec) const {
  const std::string key = base::concat("group/", to_string(spec.purpose), "/", spec.name);
  std::optional<std::string> agreed = look_up(*store_, key);
  if (!agreed) {
    const auto bytes = store_->compareSet(key, as_bytes(""), as_bytes(std::to_string(store_->add("num_groups", 1))));
    agreed = std::string(bytes.begin(), bytes.end());
  }
  const int number = std::stoi(*agreed);
  MPX_CHECK(number < kMaxNumbers, "comm", "more than ", kMaxNumbers,
            " group names; groups with at most one common rank can share a name");
  return number;
}

void check_members(const GlooMesh& mesh, const std::string& secret, const std::string& key, int index, int size) {
  const auto proof = [&](int from, int to) { return prove(secret, base::concat("mesh ", key, " ", from, " ", to)); };
  const auto width = static_cast<int64_t>(proof(0, 0).size());
  at::Tensor sent = at::empty({size, width}, at::kByte), received = at::zeros({size, width}, at::kByte);
  const auto row = [width](at::Tensor& rows, int peer) {
    return reinterpret_cast<char*>(rows.data_ptr<uint8_t>()) + peer * width;
  };
  for (int peer = 0; peer < size; ++peer) proof(index, peer).copy(row(sent, peer), static_cast<size_t>(width));
  std::vector<int64_t> no_splits;
  mesh->alltoall_base(received, sent, no_splits, no_splits)->wait();
  for (int peer = 0; peer < size; ++peer) {
    const std::string peer_proof(row(received, peer), static_cast<size_t>(width));
    MPX_CHECK(
        equal_secrets(peer_proof, proof(peer, index)), "comm", "member ", peer, " of the ranks of ", key,
        " does not have the run's secret: another program connected in its place; start the run again, and keep "
        "other programs away from its ports");
  }
}

GlooState::GlooState(GlooOptions options) : options_(std::move(options)) {
  run_ = open_store(options_);
  store_ = run_.store;
  try {
    choose_addresses();
  } catch (const base::Error& error) {
    if (options_.meet_first) refuse(*store_, options_, error.what());
    throw;
  }
  if (options_.meet_first) meet(run_, options_, addresses_.front());
  monitor_ = std::thread([this] { monitor(); });
  try {
    connect_all();
  } catch (...) {
    fail(std::current_exception());
    end_monitor();
    throw;
  }
}

GlooState::~GlooState() {
  close();
  end_monitor();
}

// After it returns no port of this process accepts a connection.
void GlooState::connect_all() {
  try {
    join_watch();
    if (options_.full_mesh) world_mesh_ = connect("world", options_.rank, options_.world_size);
    if (run_.client) run_.client->stay();
    wait_for_all(*store_, options_, [this] { throw_if_aborted(); });
  } catch (const c10::DistError&) {
    wait_for_cause();
    throw_if_aborted();
    throw_store_failure(options_);
  }
  all_joined_ = true;
  if (run_.server) run_.server->close_port();
}

void GlooState::end_monitor() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  monitor_.join();
}

void GlooState::choose_addresses() {
  if (!options_.interface.empty()) {
    addresses_ = interface_addresses(options_.interface, options_.interface_source);
  } else if (is_loopback(options_.master_addr) || !options_.other_machines) {
    addresses_ = {"127.0.0.1"};
  } else {
    addresses_ = {route_address(options_.master_addr, options_.other_machines)};
  }
}

void GlooState::join_watch() {
  WatchOptions watch;
  watch.rank = options_.rank;
  watch.world_size = options_.world_size;
  watch.address = addresses_.front();
  watch.secret = secret_ = agree_on_secret(*store_, options_);
  watch.host = host_name();
  watch.timeout = options_.timeout;
  if (options_.meet_first) watch.connect_limit = watch.silence;
  watch.publish = [this](const std::string& key, const std::string& value) { store_->set(key, as_bytes(value)); };
  watch.look_up = [this](const std::string& key) { return look_up(*store_, key); };
  watch.rank_name = options_.rank_name;
  watch.on_failure = [this](const std::string& cause) { abort_local(cause); };
  watch_ = std::make_unique<WatchTree>(std::move(watch));
}

GlooMesh GlooState::connect(const std::string& key, int index, int size) {
  auto gloo = c10d::ProcessGroupGloo::Options::create(options_.timeout);
  gloo->threads = 1;
  gloo->group_name = key;
  try {
    std::map<uint64_t, int> listening;
    {
      const std::lock_guard lock(devices_mutex_);
      const std::map<uint64_t, int> before = listening_sockets();
      for (const std::string& address : addresses_)
        gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
      listening = listening_sockets();
      std::erase_if(listening, [&](const auto& socket) { return before.contains(socket.first); });
    }
    auto mesh = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>("mesh/" + key, store_), index, size, gloo);
    for (const auto& [inode, fd] : listening) refuse_connections(fd);
    check_members(mesh, secret_, key, index, size);
    return mesh;
  } catch (const base::Error&) { throw; } catch (const std::exception&) {
    const std::string error = failure_cause(std::current_exception()).substr(0, 300);
    wait_for_cause();
    throw_if_aborted();
    throw base::Error("comm",
                      base::concat("the ", size, " ranks of ", key, " could not connect to each other within ",
                                   options_.timeout.count() / 1000.0, " s: ", list_unconnected(key, size), error));
  }
}

// Lists the ranks of the world that have not stored an address: "rank 1 (tp 1 pp 0 dp 0) has not connected ...; ".
std::string GlooState::list_unconnected(const std::string& key, int size) {
  std::string names;
  try {
    for (int rank = 0; rank < size && options_.full_mesh; ++rank) {
      if (!store_->check({base::concat("mesh/", key, "/0/", rank)}))
        names += (names.empty() ? "" : ", ") + options_.rank_name(rank);
    }
  } catch (const c10::DistError&) { return ""; }
  return names.empty() ? "" : names + " has not connected (not running, or stopped); ";
}

int GlooState::group_number(const GroupSpec& spec) {
  for (const GroupSpec& other : numbered_) {
    if (other.name != spec.name || other.purpose != spec.purpose || other.ranks == spec.ranks) continue;
    for (const int rank : spec.ranks) {
      MPX_ASSERT(
          rank == options_.rank || std::find(other.ranks.begin(), other.ranks.end(), rank) == other.ranks.end(),
          "two groups named ", spec.name, " have ranks ", options_.rank, " and ", rank, " in common");
    }
  }
  numbered_.push_back(spec);
  return GroupNumbers(store_).of(spec);
}

void GlooState::throw_if_aborted() {
  if (!aborted_) return;
  const std::lock_guard lock(mutex_);
  throw PeerFailure(cause_);
}

void GlooState::wait(const c10::intrusive_ptr<c10d::Work>& work, int peer, const std::string& what) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) throw PeerFailure(cause_);
    blocked_.insert(work.get());
  }
  std::string error;
  try {
    work->wait(options_.timeout);
  } catch (const std::exception&) { error = failure_cause(std::current_exception()); }
  {
    const std::lock_guard lock(mutex_);
    blocked_.erase(blocked_.find(work.get()));
    if (aborted_) throw PeerFailure(cause_);
  }
  if (!error.empty()) throw_transfer_error(peer, what, error);
}

void GlooState::throw_transfer_error(int peer, const std::string& what, const std::string& error) {
  const std::string who = options_.rank_name(peer);
  for (const char* const unreachable : {"Connection timed out", "No route to host", "Network is unreachable"}) {
    if (error.find(unreachable) == std::string::npos) continue;
    wait_for_cause();
    throw_if_aborted();
    throw PeerFailure(base::concat(who, " cannot be reached during ", what, " (", unreachable,
                                   "): its machine or the network to it is down"));
  }
  if (error.find("imed out") != std::string::npos || error.find("imeout") != std::string::npos) {
    throw base::Error("comm", base::concat(what, " did not complete within ", options_.timeout.count() / 1000.0,
                                           " s; missing: ", who));
  }
  wait_for_cause();
  throw_if_aborted();
  throw PeerFailure(who + " died or closed its connection during " + what);
}

// The peer may have stopped because of a third rank, or may have sent its own cause.
void GlooState::wait_for_cause() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kCauseDelay, [&] { return aborted_.load(); });
}

void GlooState::abort_local(const std::string& cause) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    cause_ = cause;
    aborted_ = true;
    for (c10d::Work* work : blocked_) work->abort();
  }
  changed_.notify_all();
}

void GlooState::fail(const std::exception_ptr& exception) {
  if (aborted_) return;  // another rank's failure, received through the tree
  {
    const std::lock_guard lock(mutex_);
    own_failure_ = exception;
  }
  const std::string prefix = "[comm] ";
  std::string message = failure_cause(exception);
  if (!is_peer_failure(exception)) message = options_.rank_name(options_.rank) + " failed: " + message;
  else if (message.rfind(prefix, 0) == 0) message.erase(0, prefix.size());
  if (watch_) watch_->send_cause(message);
  abort_local(message);
  if (all_joined_) return;
  try {  // for ranks that have not joined the tree yet
    store_->compareSet(WatchTree::kCauseKey, as_bytes(""), as_bytes(message));
  } catch (const std::exception&) {
    // Rank 0 has ended or does not answer.
  }
}

void GlooState::monitor() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closing_ || aborted_; });
  changed_.wait_for(lock, own_failure_ ? options_.own_grace : options_.grace, [&] { return closing_; });
  if (closing_ || !options_.on_stuck) return;
  const std::exception_ptr failure = own_failure_ ? own_failure_ : std::make_exception_ptr(PeerFailure(cause_));
  lock.unlock();
  options_.on_stuck(failure);
}

// All ranks leave together: the store ends with rank 0, and a closed connection would break a rank that still
// receives.
void GlooState::close() {
  if (!aborted_ && std::uncaught_exceptions() == 0) watch_->leave();
}

}  // namespace metroplex::comm
