"""``make versions``: the zoo in one environment after another, from the oldest versions to the newest ones."""
