// A few threads that walk through one forward pass side by side.
//
// A pass is a row of phases (some 200 of 2 to 100 microseconds), each a number of units of work. Every thread walks the
// same code; at a phase it takes units until none is left. A phase is over when its units are done, not when every thread
// has come by: a thread that lost its core to another program finds, when it is back, that the others have gone on without
// it, skips what is over and joins in where they are. So with busy cores a pass takes about as long as it would on the
// cores that are left, where a barrier per phase would wait for the lost thread 200 times over.
//
// Safe because a thread touches the data of a pass only inside units it has taken, and a phase whose units are taken
// cannot end without them. A unit is taken by raising a counter that carries the phase's number, which never repeats, so
// a thread that is late by a phase, or by a whole pass, takes nothing by mistake. (How many units a phase has is read outside
// of units. Only a thread whose pass is over can read a wrong number there, and all phases of that pass are over.)
//
// Waiting inside a pass is spinning at first (a system call would cost as much as a phase), then giving the core to whoever
// wants it, then sleeping in small bits. Between passes the workers sleep and burn nothing: the page that draws the result
// shares these cores.
// Not OpenMP: torch brings its own OpenMP threads, and two pools that spin on the same two cores take turns, not time.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "simd.h"

namespace tbt {

constexpr int kMaxThreads = 64;
constexpr int kUnitBits = 16;   // a phase has fewer than 2^16 units
constexpr int kPhaseBits = 12;  // a pass has fewer than 2^12 phases
constexpr int kMaxPhases = 1 << kPhaseBits;
constexpr uint64_t kUnitMask = (uint64_t{1} << kUnitBits) - 1;
constexpr int kMaxUnits = static_cast<int>(kUnitMask);
constexpr int kSpinsInPass = 1000;  // some tens of microseconds
constexpr int kYieldsInPass = 20;
constexpr int kSpinsBetweenPasses = 2000;

class Pool;

// Where one thread is in a pass.
struct Walk {
  Pool* pool;
  int thread;
  uint64_t phase;
};

// Units [first, first + count) of a phase: those a thread begins with.
struct Share {
  int first, count;
};

class Pool {
 public:
  using Task = void (*)(void* argument, Walk& walk);

  explicit Pool(int num_threads) : num_threads_(num_threads) {
    for (int t = 1; t < num_threads_; ++t) threads_.emplace_back([this, t] { work(t); });
  }

  // Not to be called after fork() in the child, where the threads do not exist: a pool is left behind there.
  ~Pool() {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      stop_ = true;
      round_.fetch_add(1);
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return num_threads_; }

  // Walk through task(argument, walk) with all threads; the caller is thread 0. Returns when every phase is over. Threads
  // may still be on their way out of the task then, touching nothing but the task's own code and `argument` itself.
  void run(Task task, void* argument) {
    const uint64_t first = ++passes_ << kPhaseBits;
    bool wake = false;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      task_ = task;
      argument_ = argument;
      first_phase_ = first;
      begin(first);
      round_.fetch_add(1, std::memory_order_release);
      wake = sleeping_ > 0;
    }
    if (wake) wake_.notify_all();
    Walk walk{this, 0, first};
    task(argument, walk);
    std::lock_guard<std::mutex> hold(mutex_);
    task_ = nullptr;  // who wakes up only now has nothing to do
  }

  // Wait until no thread is in a task any more: before an `argument` is destroyed.
  void settle() {
    for (int spins = 0; inside_.load(std::memory_order_acquire) > 0; ++spins) spin(spins);
  }

  Share share(int units, int thread) const {
    const auto begin = [&](int t) { return static_cast<int>(static_cast<int64_t>(units) * t / num_threads_); };
    return {begin(thread), begin(thread + 1) - begin(thread)};
  }

  // Nanoseconds that each phase of the last pass took, as many as fit; returns how many there were.
  int phase_times(int64_t* to, int room) const {
    const int phases = static_cast<int>(current_.load(std::memory_order_acquire) & (kMaxPhases - 1));
    for (int i = 0; i < std::min(phases, room); ++i) to[i] = (began_[i + 1] - began_[i]).count();
    return phases;
  }

  // One phase. Each thread starts with its own contiguous part of the units, because memory is fastest when each core
  // reads one long stream, and then takes units of the others, because cores are not equally fast.
  template <class Body>
  void for_each(Walk& walk, int units, Body&& body) {
    if (units == 0) return;
    const uint64_t phase = walk.phase++;
    if (current_.load(std::memory_order_acquire) != phase) return;
    int done_here = 0;
    for (int i = 0; i < num_threads_; ++i) {
      const int owner = (walk.thread + i) % num_threads_;
      const Share part = share(units, owner);
      for (int unit; (unit = take(taken_[owner].value, phase, part.count)) >= 0; ++done_here) body(part.first + unit);
    }
    if (done_here > 0) {
      const uint64_t done = done_.value.fetch_add(done_here, std::memory_order_acq_rel) + done_here;
      if ((done & kUnitMask) == static_cast<uint64_t>(units)) {
        begin(phase + 1);
        return;
      }
    }
    for (int spins = 0; current_.load(std::memory_order_acquire) == phase; ++spins) spin(spins);
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct alignas(64) Counter {
    std::atomic<uint64_t> value{0};  // phase, number of units
  };

  // Called by the one who ended the phase before: nobody else changes the counters meanwhile. Reading the clock costs as
  // much as fetching one line from memory.
  void begin(uint64_t phase) {
    began_[phase & (kMaxPhases - 1)] = Clock::now().time_since_epoch();
    for (int t = 0; t < num_threads_; ++t) taken_[t].value.store(phase << kUnitBits, std::memory_order_relaxed);
    done_.value.store(phase << kUnitBits, std::memory_order_relaxed);
    current_.store(phase, std::memory_order_release);
  }

  static int take(std::atomic<uint64_t>& taken, uint64_t phase, int count) {
    uint64_t seen = taken.load(std::memory_order_acquire);
    while (seen >> kUnitBits == phase && static_cast<int>(seen & kUnitMask) < count) {
      if (taken.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) return static_cast<int>(seen & kUnitMask);
    }
    return -1;
  }

  static void spin(int spins) {
    if (spins < kSpinsInPass) {
      pause();
    } else if (spins < kSpinsInPass + kYieldsInPass) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  void work(int thread) {
    int seen = 0;
    for (;;) {
      for (int spins = 0; round_.load(std::memory_order_acquire) == seen && spins < kSpinsBetweenPasses; ++spins) pause();
      Walk walk{this, thread, 0};
      Task task;
      void* argument;
      {
        std::unique_lock<std::mutex> hold(mutex_);
        ++sleeping_;
        wake_.wait(hold, [&] { return round_.load(std::memory_order_relaxed) != seen; });
        --sleeping_;
        if (stop_) return;
        seen = round_.load(std::memory_order_relaxed);
        task = task_;
        argument = argument_;
        walk.phase = first_phase_;
        if (task) inside_.fetch_add(1, std::memory_order_relaxed);
      }
      if (!task) continue;
      task(argument, walk);
      inside_.fetch_sub(1, std::memory_order_release);
    }
  }

  const int num_threads_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;  // guards what follows up to round_, which is also read without
  std::condition_variable wake_;
  int sleeping_ = 0;
  bool stop_ = false;
  Task task_ = nullptr;
  void* argument_ = nullptr;
  uint64_t first_phase_ = 0;
  uint64_t passes_ = 0;
  alignas(64) std::atomic<int> round_{0};
  alignas(64) std::atomic<int> inside_{0};
  alignas(64) std::atomic<uint64_t> current_{0};
  Counter done_;
  Counter taken_[kMaxThreads];
  std::chrono::nanoseconds began_[kMaxPhases] = {};
};

}  // namespace tbt
