#include "comm/backends/gloo_state.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/error.h"

namespace metroplex::comm {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(100);
constexpr int kMaxGroups = 1024;  // bits of a tag, see Mesh::tag
constexpr char kCause[] = "metroplex/cause";
constexpr char kSeen[] = "metroplex/cause_seen";
constexpr char kClosed[] = "metroplex/closed";

std::vector<uint8_t> as_bytes(const std::string& text) { return {text.begin(), text.end()}; }

bool is_loopback(const std::string& host) { return host == "localhost" || host.rfind("127.", 0) == 0; }

}  // namespace

GlooState::GlooState(GlooOptions options) : options_(std::move(options)) {
  connect_store();
  monitor_ = std::thread([this] { monitor(); });
  try {
    connect_mesh();
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    monitor_.join();
    throw;
  }
}

GlooState::~GlooState() {
  close();
  monitor_.join();
}

void GlooState::connect_store() {
  c10d::TCPStoreOptions store;
  store.port = options_.master_port;
  store.isServer = options_.rank == 0 && !options_.agent_store;
  store.waitWorkers = false;
  store.multiTenant = true;
  store.timeout = options_.timeout;
  if (store.isServer && options_.listen_fd >= 0) store.masterListenFd = options_.listen_fd;
  const std::string where = options_.master_addr + ":" + std::to_string(options_.master_port);
  try {
    store_ = c10::make_intrusive<c10d::TCPStore>(options_.master_addr, store);
    store.isServer = false;
    store.masterListenFd.reset();
    watch_ = c10::make_intrusive<c10d::TCPStore>(options_.master_addr, store);
  } catch (const std::exception&) {
    const std::string error = cause_of(std::current_exception());
    const bool in_use =
        error.find("EADDRINUSE") != std::string::npos || error.find("already in use") != std::string::npos;
    MPX_CHECK(!in_use, "comm", "port ", options_.master_port, " of ", options_.master_addr,
              " is in use by another program; choose another master port, or leave it out where this program starts "
              "the ranks itself");
    throw base::Error("comm", base::concat("no connection to the rendezvous store of rank 0 at ", where, " within ",
                                           options_.timeout.count() / 1000.0, " s: ", error.substr(0, 300)));
  }
}

void GlooState::connect_mesh() {
  auto gloo = c10d::ProcessGroupGloo::Options::create(options_.timeout);
  gloo->threads = 1;
  gloo->group_name = "world";
  try {
    if (!options_.interface.empty()) {
      gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(options_.interface));
    } else if (is_loopback(options_.master_addr)) {
      gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    } else {
      gloo->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
    }
    mesh_ = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>("mesh", store_),
                                                        options_.rank, options_.world_size, gloo);
  } catch (const std::exception&) {
    throw_if_aborted();
    throw base::Error(
        "comm",
        base::concat("the ", options_.world_size, " ranks could not connect to each other within ",
                     options_.timeout.count() / 1000.0, " s: ", cause_of(std::current_exception()).substr(0, 300)));
  }
}

int GlooState::number_of_group(const std::string& key) {
  const std::string name = "metroplex/group/" + key;
  const std::lock_guard lock(watch_mutex_);
  std::vector<uint8_t> agreed;
  if (watch_->check({name})) {
    agreed = watch_->get(name);
  } else {
    const auto mine = std::to_string(watch_->add("metroplex/num_groups", 1));
    agreed = watch_->compareSet(name, as_bytes(""), as_bytes(mine));
  }
  const int number = std::stoi(std::string(agreed.begin(), agreed.end()));
  MPX_CHECK(number < kMaxGroups, "comm", "more than ", kMaxGroups,
            " groups over gloo; use nccl for a world of this size");
  return number;
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
  } catch (const std::exception&) { error = cause_of(std::current_exception()); }
  {
    const std::lock_guard lock(mutex_);
    blocked_.erase(blocked_.find(work.get()));
    if (aborted_) throw PeerFailure(cause_);
  }
  if (!error.empty()) lost(peer, what, error);
}

void GlooState::lost(int peer, const std::string& what, const std::string& error) {
  const std::string who = options_.describe(peer);
  if (error.find("imed out") != std::string::npos || error.find("imeout") != std::string::npos) {
    throw base::Error("comm", base::concat(what, " did not complete within ", options_.timeout.count() / 1000.0,
                                           " s; missing: ", who));
  }
  {  // The peer may have stopped because of a third rank, or have left its cause.
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 3 * kPoll, [&] { return aborted_.load(); });
  }
  throw_if_aborted();
  throw PeerFailure(who + " died or closed its connection during " + what);
}

void GlooState::abort_here(const std::string& cause) {
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
  if (aborted_) {  // another rank's failure: it and this one need not be told
    if (options_.rank == 0) let_others_read(options_.world_size - 2);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    own_failure_ = exception;
  }
  const std::string prefix = "[comm] ";
  std::string message = cause_of(exception);
  if (!is_peer_failure(exception)) message = options_.describe(options_.rank) + " failed: " + message;
  else if (message.rfind(prefix, 0) == 0) message.erase(0, prefix.size());
  try {
    const std::lock_guard lock(watch_mutex_);
    watch_->compareSet(kCause, as_bytes(""), as_bytes(message));
  } catch (const std::exception&) {
    // Without the store the others notice by their connections.
  }
  if (options_.rank == 0) let_others_read(options_.world_size - 1);
  abort_here(message);
}

// Rank 0 takes the store along when it goes. Ranks that died never read: not for long, then.
void GlooState::let_others_read(int num_readers) {
  const auto deadline = std::chrono::steady_clock::now() + 4 * kPoll;
  try {
    while (std::chrono::steady_clock::now() < deadline) {
      {
        const std::lock_guard lock(watch_mutex_);
        if (watch_->add(kSeen, 0) >= num_readers) return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  } catch (const std::exception&) {
    // The store is gone already.
  }
}

bool GlooState::read_cause() {
  std::string cause;
  try {
    const std::lock_guard lock(watch_mutex_);
    if (!watch_->check({kCause})) return false;
    const std::vector<uint8_t> bytes = watch_->get(kCause);
    cause.assign(bytes.begin(), bytes.end());
    if (options_.rank != 0) watch_->add(kSeen, 1);
  } catch (const std::exception&) {
    if (cause.empty()) {
      cause = (options_.agent_store ? std::string("the launcher") : options_.describe(0)) +
              " is gone: the rendezvous store at " + options_.master_addr + ":" +
              std::to_string(options_.master_port) + " no longer answers";
    }
  }
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return true;
  }
  abort_here(cause);
  return true;
}

void GlooState::monitor() {
  std::unique_lock lock(mutex_);
  while (!closing_ && !aborted_) {
    lock.unlock();
    const bool over = read_cause();
    lock.lock();
    if (over) break;
    changed_.wait_for(lock, kPoll, [&] { return closing_ || aborted_; });
  }
  changed_.wait_for(lock, own_failure_ ? options_.own_grace : options_.grace, [&] { return closing_; });
  if (closing_ || !options_.on_stuck) return;
  const std::exception_ptr failure = own_failure_ ? own_failure_ : std::make_exception_ptr(PeerFailure(cause_));
  lock.unlock();
  options_.on_stuck(failure);
}

void GlooState::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (aborted_ || std::uncaught_exceptions() > 0) return;
  // The store goes with rank 0, and connections must not be cut under a rank that still receives: all leave together.
  try {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    const std::lock_guard lock(watch_mutex_);
    watch_->add(kClosed, 1);
    while (std::chrono::steady_clock::now() < deadline && watch_->add(kClosed, 0) < options_.world_size) {
      if (watch_->check({kCause})) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    // Rank 0 counts the farewells, which are the last words of the others.
    watch_->add("metroplex/farewell", 1);
    while (options_.rank == 0 && std::chrono::steady_clock::now() < deadline &&
           watch_->add("metroplex/farewell", 0) < options_.world_size) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  } catch (const std::exception&) {
    // The store has gone first: nothing is left to agree on.
  }
}

}  // namespace metroplex::comm
